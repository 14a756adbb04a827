package reconciler

import (
	"context"
	"errors"
	"time"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/segmenttemplate"
)

const (
	// renderInterval is the least time between two renderings: groups that come in a
	// burst are rendered together.
	renderInterval = 100 * time.Millisecond
	// renderRetryInterval is the wait before another attempt where the next one may
	// succeed with the same groups.
	renderRetryInterval = 5 * time.Second
)

// errNoSegments: nothing takes a topology away by accident (protocol T2).
var errNoSegments = errors.New("segments-template rendered no segments, and there are some: slim-cp topology apply --force makes the topology empty")

// renderSegments keeps the segments of the topology's template up to date with the
// groups. It renders outside of Apply and holds no lock.
func (l *leadership) renderSegments(ctx context.Context) {
	feed := l.Store.Subscribe()
	defer feed.Close()
	retry := true // what an earlier leader could not render
	for {
		_, view, err := feed.Next(ctx)
		for err == nil && fsm.UsesTemplate(view.Fleet()) {
			wait := renderInterval
			due := view.TemplateOutdated() || retry && view.Rendered().GetError() != ""
			if retry = due && !l.render(ctx, view); retry {
				wait = renderRetryInterval
			}
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return
			}
			if view = l.Store.View(); !retry && !view.TemplateOutdated() {
				break
			}
		}
		if err != nil {
			return
		}
	}
}

// render renders the template for the groups of a view and proposes the segments, or
// why there are none. It reports false if it is to be done again.
func (l *leadership) render(ctx context.Context, view *fsm.View) (done bool) {
	source, groups := view.Fleet().GetTopology().GetSegmentsTemplate(), view.TemplateGroups()
	segments, err := segmenttemplate.Segments(ctx, source, groups)
	if err == nil && len(segments) == 0 && len(view.Rendered().GetSegments()) > 0 {
		err = errNoSegments
	}
	var rendered *slimcppb.RenderedSegments
	if err == nil {
		rendered, err = fsm.NewRenderedSegments(source, groups, segments)
	}
	if ctx.Err() != nil {
		return true
	}
	slow := errors.Is(err, context.DeadlineExceeded) // or the machine is
	if err != nil {
		rendered = fsm.FailedSegments(source, groups, err)
		if !view.TemplateOutdated() && view.Rendered().GetError() == rendered.GetError() {
			return !slow
		}
		l.Logger.Error("failed to render configured topology; retaining the last valid segment graph", "error", err)
	}
	_, err = l.propose(ctx, &slimcppb.Command{
		Schema: fsm.TemplateSchema, Generation: view.Generation(),
		Payload: &slimcppb.Command_SetRenderedSegments{SetRenderedSegments: rendered},
	})
	if err != nil && !errors.Is(err, fsm.ErrGroupsChanged) && !errors.Is(err, fsm.ErrStale) {
		l.Logger.Warn("the topology's segments were not proposed, and will be again", "error", err)
		return false
	}
	return !slow
}
