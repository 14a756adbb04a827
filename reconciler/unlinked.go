package reconciler

import (
	"context"
	"time"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

const (
	// makeLinksPause is between two entries that go on with links, so that other
	// entries and the drivers' work on the links have their turn.
	makeLinksPause = 10 * time.Millisecond
	// makeLinksRetry is the pause after one that was not committed.
	makeLinksRetry = time.Second
)

// noteUnlinked wakes makeLinks if links are left over.
func (l *leadership) noteUnlinked(view *fsm.View) {
	if view.UnlinkedGroups() == 0 {
		return
	}
	select {
	case l.unlinked <- struct{}{}:
	default:
	}
}

// makeLinks has the log go on with the links that its entries left over, one entry at a
// time: what others propose meanwhile waits for one of them at most.
func (l *leadership) makeLinks(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.unlinked:
		}
		for l.Store.View().UnlinkedGroups() > 0 {
			pause := makeLinksPause
			payload := &slimcppb.Command_MakeLinks{MakeLinks: &slimcppb.MakeLinks{}}
			if _, err := l.propose(ctx, &slimcppb.Command{Payload: payload}); err != nil {
				l.Logger.Debug("links that are left over were not made", "error", err)
				pause = makeLinksRetry
			}
			timer.Reset(pause)
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
		}
	}
}
