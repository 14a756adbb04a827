package operator

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
)

// Metadata of the northbound API about how a list is read.
const (
	consistencyKey = "slimcp-consistency"
	stale          = "stale"
	indexKey       = "slimcp-index"
	ageKey         = "slimcp-age-ms"
)

// addStaleFlags adds --stale to every list of the state.
func (t *tree) addStaleFlags(commands []*cobra.Command) {
	for _, noun := range commands {
		for _, command := range noun.Commands() {
			if command.Name() == "list" && noun.Name() != "connection" {
				command.Flags().BoolVar(&t.stale, "stale", false,
					"show what the replica asked knows, which may be old and needs no leader; its age goes to standard error")
			}
		}
	}
}

// freshness asks for a stale answer and notes how old it is.
type freshness struct {
	mu         sync.Mutex
	index, age string
}

func staleContext(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, consistencyKey, stale)
}

// say tells how old the answer is.
func (f *freshness) say(w io.Writer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.index == "" {
		return
	}
	age := "an unknown time"
	if ms, err := strconv.ParseInt(f.age, 10, 64); err == nil {
		age = (time.Duration(ms) * time.Millisecond).String()
	}
	fmt.Fprintf(w, "As of index %s, at most %s old\n", printable(f.index), age)
}

// HandleRPC is called by gRPC.
func (f *freshness) HandleRPC(_ context.Context, event stats.RPCStats) {
	header, ok := event.(*stats.InHeader)
	if !ok {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, to := range map[string]*string{indexKey: &f.index, ageKey: &f.age} {
		if values := header.Header.Get(key); len(values) > 0 {
			*to = values[0]
		}
	}
}

// TagRPC is called by gRPC.
func (f *freshness) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn is called by gRPC.
func (f *freshness) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn is called by gRPC.
func (f *freshness) HandleConn(context.Context, stats.ConnStats) {}
