package operator

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	convergedText = "Converged at index 43: 3 of 3 nodes connected, 2 of 2 links applied, 9 of 9 routes applied\n"
	missingText   = "Not converged at index 43: 2 of 3 nodes connected, 2 of 2 links applied, 4 of 9 routes applied\n" +
		"  node a/1 does not answer\n  node b/1: 5 routes are not applied\n"
)

func TestStatus(t *testing.T) {
	isolate(t)
	server := &stub{unconverged: 1}
	address := serve(t, server)
	got := run(t, Options{}, "status", "--server", address)
	if got.code != ExitNotConverged || got.stdout != missingText {
		t.Errorf("exit code %d, want %d; stdout\n%s", got.code, ExitNotConverged, got.stdout)
	}
	checkErrorLine(t, got.stderr, "Error: not converged\n")
	if got := run(t, Options{}, "status", "--server", address); got.code != ExitDone || got.stdout != convergedText {
		t.Errorf("exit code %d, stdout\n%s", got.code, got.stdout)
	}
}

func TestStatusWarns(t *testing.T) {
	isolate(t)
	server := &stub{warnings: []string{"two processes with one id: a/1"}}
	got := run(t, Options{}, "status", "--server", serve(t, server))
	if want := convergedText + "  warning: two processes with one id: a/1\n"; got.code != ExitDone || got.stdout != want {
		t.Errorf("exit code %d, stdout\n%s", got.code, got.stdout)
	}
}

// Nodes that are gone keep nothing from converging unless all are expected.
func TestStatusExpectsAll(t *testing.T) {
	isolate(t)
	const text = "Converged at index 43: 3 of 3 nodes connected, 2 gone, 2 of 2 links applied, 9 of 9 routes applied\n"
	for line, c := range map[string]struct {
		code   int
		stderr string
	}{
		"status":              {ExitDone, ""},
		"status --expect-all": {ExitNotConverged, "Error: not all nodes are there: 2 gone\n"},
	} {
		got := run(t, Options{}, append(strings.Fields(line), "--server", serve(t, &stub{departed: 2}))...)
		if got.code != c.code || got.stdout != text || got.stderr != c.stderr {
			t.Errorf("%s: exit code %d, stdout\n%sstderr %q", line, got.code, got.stdout, got.stderr)
		}
	}
	server := &stub{departed: 2}
	got := run(t, Options{}, "status", "--expect-all", "--wait", "--server", serve(t, server))
	if got.code != ExitDone || got.stdout != convergedText || server.calls() != 3 {
		t.Errorf("waiting: exit code %d after %d calls, stdout\n%s", got.code, server.calls(), got.stdout)
	}
	got = run(t, Options{}, "status", "--expect-all", "--wait", "--timeout", "1s", "--server", serve(t, &stub{departed: 1 << 40}))
	if got.code != ExitNotConverged || !strings.HasSuffix(got.stderr, " gone within 1s\n") {
		t.Errorf("waiting in vain: exit code %d, stderr %q", got.code, got.stderr)
	}
}

func TestStatusWaits(t *testing.T) {
	isolate(t)
	server := &stub{unconverged: 3}
	got := run(t, Options{}, "status", "--wait", "--server", serve(t, server))
	if got.code != ExitDone || got.stdout != convergedText || server.calls() != 4 {
		t.Errorf("exit code %d after %d calls, stdout\n%s", got.code, server.calls(), got.stdout)
	}
}

func TestStatusGivesUp(t *testing.T) {
	isolate(t)
	got := run(t, Options{}, "status", "--wait", "--timeout", "2s", "--server", serve(t, &stub{unconverged: 1 << 30}))
	if got.code != ExitNotConverged || got.stdout != missingText {
		t.Errorf("exit code %d, stdout\n%s", got.code, got.stdout)
	}
	checkErrorLine(t, got.stderr, "Error: not converged within 2s\n")
}

func TestStatusWaitsForNoErrorThatStays(t *testing.T) {
	isolate(t)
	server := &stub{fail: status.Error(codes.Unimplemented, "unknown service")}
	got := run(t, Options{}, "status", "--wait", "--server", serve(t, server))
	if got.code != ExitFailed || server.calls() != 1 || !strings.Contains(got.stderr, "UNIMPLEMENTED") {
		t.Errorf("exit code %d after %d calls: %s", got.code, server.calls(), got.stderr)
	}
}

// look asks once whether all is converged.
type look = func(context.Context) (*slimcppb.ConvergenceResponse, error)

// TestWaiting: what a wait of a minute returns, and after how many looks.
func TestWaiting(t *testing.T) {
	var (
		missing   = &slimcppb.ConvergenceResponse{Index: 1}
		converged = &slimcppb.ConvergenceResponse{Index: 2, Converged: true}
		noLeader  = status.Error(codes.Unavailable, "no leader")
	)
	hang := func(ctx context.Context) (*slimcppb.ConvergenceResponse, error) {
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	answer := func(answer *slimcppb.ConvergenceResponse, err error) look {
		return func(context.Context) (*slimcppb.ConvergenceResponse, error) { return answer, err }
	}
	for name, c := range map[string]struct {
		looks    []look // the last one is repeated
		want     *slimcppb.ConvergenceResponse
		wantCode codes.Code
		least    int
		most     int
	}{
		"at once":                 {looks: []look{answer(converged, nil)}, want: converged, least: 1, most: 1},
		"a new leader":            {looks: []look{answer(nil, noLeader), answer(missing, nil), answer(nil, noLeader), answer(converged, nil)}, want: converged, least: 4, most: 4},
		"a replica that hangs":    {looks: []look{hang, answer(converged, nil)}, want: converged, least: 2, most: 2},
		"never":                   {looks: []look{answer(missing, nil)}, want: missing, least: 30, most: 60},
		"lost after an answer":    {looks: []look{answer(missing, nil), answer(nil, noLeader)}, want: missing, least: 30, most: 60},
		"no leader, then silence": {looks: []look{answer(nil, noLeader), hang}, wantCode: codes.DeadlineExceeded, least: 5, most: 20},
		"no leader":               {looks: []look{answer(nil, noLeader)}, wantCode: codes.Unavailable, least: 30, most: 60},
		"another error":           {looks: []look{answer(missing, nil), answer(nil, status.Error(codes.Internal, ""))}, wantCode: codes.Internal, least: 2, most: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				looks := 0
				got, err := waiting(func(ctx context.Context) (*slimcppb.ConvergenceResponse, error) {
					next := c.looks[min(looks, len(c.looks)-1)]
					looks++
					return next(ctx)
				}, (*slimcppb.ConvergenceResponse).GetConverged)(ctx)
				if got != c.want || status.Code(err) != c.wantCode || looks < c.least || looks > c.most {
					t.Errorf("%v, %v after %d looks; want %v, %v after %d to %d", got, err, looks, c.want, c.wantCode, c.least, c.most)
				}
			})
		})
	}
}
