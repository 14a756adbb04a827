package northbound

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"pgregory.net/rapid"

	"github.com/slim-cp/slim-cp/fsm"
	controlplanepb "github.com/slim-cp/slim-cp/proto/controlplane/v1"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// row is a route in one line: "a/1>b/1 app FAILED message".
func row(route *controlplanepb.RouteEntry) string {
	status := strings.TrimPrefix(route.GetStatus().String(), "ROUTE_STATUS_")
	text := fmt.Sprintf("%s>%s %s %s %s", route.GetSourceNodeId(), route.GetDestNodeId(),
		route.GetName().GetStrName().GetStrComponent_2(), status, route.GetStatusMsg())
	return strings.TrimSpace(text)
}

func wantRows(tb testing.TB, got []*controlplanepb.RouteEntry, want ...string) {
	tb.Helper()
	var rows []string
	for _, route := range got {
		rows = append(rows, row(route))
	}
	if !slices.Equal(rows, want) {
		tb.Errorf("routes\n%s\nwant\n%s", strings.Join(rows, "\n"), strings.Join(want, "\n"))
	}
}

func TestRouteID(t *testing.T) {
	for _, c := range []struct {
		route fsm.Route
		want  string
	}{
		{
			fsm.Route{
				NodeID: "src", LinkID: "link1", Name: fsm.Name{C0: "c0", C1: "c1", C2: "c2", ID: fsm.NoInstance},
				Announcer: fsm.Announcer{NodeID: "dst"},
			},
			"75333f79-8dc7-5531-af2c-38d620d53be4",
		},
		{
			fsm.Route{
				NodeID: "*", Name: fsm.Name{C0: "org", C1: "ns", C2: "svc", ID: fsm.InstanceID{15: 1}},
				Announcer: fsm.Announcer{NodeID: "dom-a/node-1"},
			},
			"f5fc27de-a19c-562a-abf6-563f23b563b1",
		},
	} {
		if got := routeID(c.route); got != c.want {
			t.Errorf("%s: %s, want %s", c.route.Name, got, c.want)
		}
	}
}

func TestListRoutesFollowsAName(t *testing.T) {
	f, link := twoGroups(t)
	operator := f.operator(t)
	f.announce("a/1", "app")
	wantRows(t, operator.routes(t, "", ""), "*>a/1 app APPLIED")

	f.claim("a/1", link)
	wantRows(t, operator.routes(t, "", ""), "*>a/1 app APPLIED", "b/1>a/1 app PENDING")

	f.reconciled("b/1", nil, &slimcppb.RouteFailure{
		Name: appName("app"), LinkId: link.ID, Revision: f.index, Error: "connection not found",
	})
	wantRows(t, operator.routes(t, "", ""), "*>a/1 app APPLIED", "b/1>a/1 app FAILED connection not found")

	f.reconciled("b/1", nil)
	wantRows(t, operator.routes(t, "", ""), "*>a/1 app APPLIED", "b/1>a/1 app APPLIED")
	applied := operator.routes(t, "b/1", "")[0]
	name := fsm.Name{C0: "org", C1: "ns", C2: "app", ID: fsm.NoInstance}
	wantEntries(t, []*controlplanepb.RouteEntry{applied}, &controlplanepb.RouteEntry{
		Id: applied.GetId(), SourceNodeId: "b/1", DestNodeId: "a/1", Name: name.Wire(), LinkId: link.ID,
		Status: controlplanepb.RouteStatus_ROUTE_STATUS_APPLIED, LastUpdated: epoch.Unix() + int64(f.claimedAt(link)),
	})

	f.withdraw("a/1", "app")
	wantRows(t, operator.routes(t, "", ""), "*>a/1 app DELETED", "b/1>a/1 app DELETED")

	f.apply(&slimcppb.Command{Payload: &slimcppb.Command_PurgeTombstones{PurgeTombstones: &slimcppb.PurgeTombstones{
		Keys: []*slimcppb.TombstoneKey{{Name: appName("app"), NodeId: "a/1", Revision: f.index}},
	}}})
	wantRows(t, operator.routes(t, "", ""))
}

// claimedAt returns in seconds after the epoch when the link was claimed.
func (f *fleet) claimedAt(link *fsm.Link) uint64 {
	claimed, _ := f.view().Link(link.ID)
	return uint64(claimed.UpdatedAt.Sub(epoch).Seconds())
}

func TestListRoutesFilters(t *testing.T) {
	f := newFleet(t, star("a"))
	f.register("a/1", gateway("a-ext:1"))
	for _, id := range []string{"b/1", "b/2", "c/1"} {
		f.register(id)
	}
	f.claim("a/1", f.link("a", "b"))
	f.claim("a/1", f.link("a", "c"))
	f.announce("b/1", "x")
	f.announce("b/2", "x") // the second announcer of a name is a row of its own
	f.announce("c/1", "y")
	operator := f.operator(t)
	dialler := f.link("a", "b").SourceNode
	for _, c := range []struct {
		source, dest string
		want         []string
	}{
		{"", "", []string{
			"*>b/1 x APPLIED", "*>b/2 x APPLIED", "*>c/1 y APPLIED",
			"a/1>b/1 x PENDING", "a/1>b/2 x PENDING", "a/1>c/1 y PENDING",
			dialler + ">c/1 y PENDING", "c/1>b/1 x PENDING", "c/1>b/2 x PENDING",
		}},
		{"*", "", []string{"*>b/1 x APPLIED", "*>b/2 x APPLIED", "*>c/1 y APPLIED"}},
		{"*", "b/2", []string{"*>b/2 x APPLIED"}},
		{"c/1", "", []string{"c/1>b/1 x PENDING", "c/1>b/2 x PENDING"}},
		{"", "c/1", []string{"*>c/1 y APPLIED", "a/1>c/1 y PENDING", dialler + ">c/1 y PENDING"}},
		{"a/1", "b/1", []string{"a/1>b/1 x PENDING"}},
		{"a/1", "a/1", nil},
		{"nobody", "", nil},
		{"", "nobody", nil},
	} {
		wantRows(t, operator.routes(t, c.source, c.dest), c.want...)
	}
}

// Whatever happened to a fleet, a list has no two rows for the same source,
// name and destination, begins with the templates, goes on by source, and a
// filter shows exactly the rows of the whole list that match.
func TestListRoutesProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := randomFleet(t)
		all := f.rows(fsm.RouteFilter{})
		seen := map[string]bool{}
		for _, route := range all {
			key := route.GetSourceNodeId() + ">" + route.GetDestNodeId() + " " + route.GetName().GetStrName().GetStrComponent_2()
			if seen[key] || seen[route.GetId()] {
				t.Fatalf("twice: %s", row(route))
			}
			seen[key], seen[route.GetId()] = true, true
		}
		if !slices.IsSortedFunc(all, func(a, b *controlplanepb.RouteEntry) int {
			return strings.Compare(a.GetSourceNodeId(), b.GetSourceNodeId()) // "*" is the smallest
		}) {
			t.Fatal("sources are not in order")
		}
		ids := append([]string{"", "*"}, randomNodes...)
		filter := fsm.RouteFilter{Source: rapid.SampledFrom(ids).Draw(t, "source"), Dest: rapid.SampledFrom(ids).Draw(t, "dest")}
		var want []string
		for _, route := range all {
			if (filter.Source == "" || filter.Source == route.GetSourceNodeId()) && (filter.Dest == "" || filter.Dest == route.GetDestNodeId()) {
				want = append(want, route.String())
			}
		}
		var got []string
		for _, route := range f.rows(filter) {
			got = append(got, route.String())
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%+v: %q, want %q", filter, got, want)
		}
	})
}

var randomNodes = []string{"a/1", "a/2", "b/1", "c/1", "c/2", "d/1"}

// randomFleet takes a star around a through random events.
func randomFleet(t *rapid.T) *fleet {
	f := newFleet(t, star("a"))
	for range rapid.IntRange(5, 60).Draw(t, "events") {
		id := rapid.SampledFrom(randomNodes).Draw(t, "node")
		app := rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "app")
		node, known := f.view().Node(id)
		switch what := rapid.IntRange(0, 9).Draw(t, "event"); {
		case known && !node.Connected() && node.State == fsm.NodePresent && what < 5:
			f.depart(id)
		case !known || !node.Connected():
			f.register(id, gateway(id+"-ext:1"))
		case what == 0:
			f.lose(id)
		case what == 1:
			for link := range f.view().LinksOf(id) {
				if link.SourceNode == id && !link.Live() && !link.Gone {
					f.dropped(link)
				}
			}
		case what < 5:
			f.announce(id, app)
		case what < 7:
			f.withdraw(id, app)
		case what < 9:
			for link := range f.view().Links() {
				if link.Live() && link.DestNode == "" && link.DestGroup == node.Group {
					f.claim(id, link)
				}
			}
		default:
			f.reconciled(id, nil, f.randomFailures(t, id, app)...)
		}
	}
	return f
}

// randomFailures has a node refuse a name over some of its links, in a revision
// that may be old.
func (f *fleet) randomFailures(t *rapid.T, id, app string) []*slimcppb.RouteFailure {
	var failures []*slimcppb.RouteFailure
	for link := range f.view().LinksOf(id) {
		if rapid.Bool().Draw(t, "refused") {
			failures = append(failures, &slimcppb.RouteFailure{
				Name: appName(app), LinkId: link.ID, Error: "refused",
				Revision: f.index - uint64(rapid.IntRange(0, 3).Draw(t, "revisions behind")),
			})
		}
	}
	return failures
}

// rows are the routes that the handler sends.
func (f *fleet) rows(filter fsm.RouteFilter) []*controlplanepb.RouteEntry {
	f.tb.Helper()
	recorder := &recorder{}
	request := &controlplanepb.RouteListRequest{SrcNodeId: filter.Source, DestNodeId: filter.Dest}
	if err := NewService(Options{Reader: &reader{store: f.store}}).ListRoutes(request, recorder); err != nil {
		f.tb.Fatal(err)
	}
	return recorder.rows
}

// recorder is the server's end of a call without a connection.
type recorder struct {
	grpc.ServerStream
	rows []*controlplanepb.RouteEntry
}

func (r *recorder) Context() context.Context {
	return grpc.NewContextWithServerTransportStream(context.Background(), headerSink{})
}

type headerSink struct{ grpc.ServerTransportStream }

func (headerSink) SetHeader(metadata.MD) error { return nil }

func (r *recorder) Send(row *controlplanepb.RouteEntry) error {
	r.rows = append(r.rows, row)
	return nil
}

// manyRoutes is a fleet of 100 groups with the given number of names, each of
// which makes about 100 rows.
func manyRoutes(tb rapid.TB, names int) *fleet {
	tb.Helper()
	f := newFleet(tb, star("g0"))
	f.register("g0/1", gateway("hub-ext:1"))
	for i := 1; i < 100; i++ {
		group := fmt.Sprintf("g%d", i)
		f.register(group + "/1")
		f.claim("g0/1", f.link("g0", group))
	}
	for i := 0; i < names; i += 100 {
		var apps []string
		for j := i; j < i+100; j++ {
			apps = append(apps, fmt.Sprintf("app-%d", j))
		}
		f.announce(fmt.Sprintf("g%d/1", 1+i/100%99), apps...)
	}
	return f
}

// countingStream counts the messages that were handed to gRPC.
type countingStream struct {
	grpc.ServerStream
	sent *atomic.Int64
}

func (s countingStream) SendMsg(message any) error {
	s.sent.Add(1)
	return s.ServerStream.SendMsg(message)
}

// A list that nobody reads on is not rendered on: it waits, and ends with its
// call.
func TestListRoutesWaitsForItsReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := manyRoutes(t, 500)
		var sent atomic.Int64
		ended := make(chan error, 1)
		count := func(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			err := handle(service, countingStream{ServerStream: stream, sent: &sent})
			ended <- err
			return err
		}
		operator := dial(t, Options{Reader: &reader{store: f.store}}, grpc.StreamInterceptor(count))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := operator.ListRoutes(ctx, &controlplanepb.RouteListRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := sent.Load(); n > 5000 {
			t.Errorf("%d rows were rendered for a reader of one", n)
		}
		cancel()
		if err := <-ended; err == nil {
			t.Error("the handler did not notice that its caller is gone")
		}
	})
}

// BenchmarkListRoutes reads a list of a million rows and reports by how much
// the heap grew at most meanwhile, in both processes together.
func BenchmarkListRoutes(b *testing.B) {
	f := manyRoutes(b, 10_000)
	operator := f.operator(b)
	for b.Loop() {
		runtime.GC()
		before, peak, rows := heapBytes(), uint64(0), 0
		stream, err := operator.ListRoutes(b.Context(), &controlplanepb.RouteListRequest{})
		if err != nil {
			b.Fatal(err)
		}
		for ; ; rows++ {
			if _, err := stream.Recv(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				b.Fatal(err)
			}
			if rows%50_000 == 0 {
				peak = max(peak, heapBytes())
			}
		}
		b.ReportMetric(float64(rows), "rows")
		b.ReportMetric(float64(peak-min(before, peak))/(1<<20), "MiB-peak-growth")
	}
}

func heapBytes() uint64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
