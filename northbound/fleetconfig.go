package northbound

import (
	"context"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
	"github.com/slim-cp/slim-cp/segmenttemplate"
)

// ApplyFleetConfig makes a fleet configuration the active one (protocol T1, T2).
// The document is complete: what it leaves out is not taken from the active one.
// One that equals the active one changes nothing. One that takes away what is not
// taken away by accident is refused unless it is forced.
func (s *Service) ApplyFleetConfig(ctx context.Context, request *slimcppb.ApplyFleetConfigRequest) (*slimcppb.ApplyFleetConfigResponse, error) {
	wanted := request.GetConfig()
	response := &slimcppb.ApplyFleetConfigResponse{}
	subject := []any{
		"segments", len(wanted.GetTopology().GetSegments()),
		"registration_auth", wanted.GetRegistrationAuth(),
		"secrets", len(wanted.GetSecrets()),
	}
	if request.GetForce() {
		subject = append(subject, "force", true)
	}
	set := &slimcppb.SetFleetConfig{Config: wanted}
	command := &slimcppb.Command{Payload: &slimcppb.Command_SetFleetConfig{SetFleetConfig: set}}
	result, err := s.mutate(ctx, mutation{
		action:  "apply fleet configuration",
		subject: subject,
		refused: checkFleetConfig(wanted),
		fresh:   true, // an older view may lack the nodes and links that would be lost
		judge: func(view *fsm.View) error {
			again := request.GetForce() && view.Rendered().GetError() != ""
			if proto.Equal(view.Fleet(), wanted) && !again {
				return errUnchanged
			}
			rendered, err := RenderSegments(ctx, view, wanted)
			if err != nil {
				return argumentError("%v", err)
			}
			if set.Rendered = rendered; fsm.UsesTemplate(wanted) {
				command.Schema = fsm.TemplateSchema
			}
			change := view.FleetChange(wanted, rendered)
			response.Changed = true
			response.Changes = append(change.Lines(), caseHints(view, wanted)...)
			if losses := change.Losses(); len(losses) > 0 && view.FleetRevision() > 0 && !request.GetForce() {
				return &refusal{text: "it needs --force: " + strings.Join(losses, "; "), cause: errNeedsForce}
			}
			return nil
		},
		command: command,
	})
	response.Index = result.Index
	return response, err
}

// PreviewFleetConfig says what ApplyFleetConfig would change.
func (s *Service) PreviewFleetConfig(ctx context.Context, request *slimcppb.PreviewFleetConfigRequest) (*slimcppb.PreviewFleetConfigResponse, error) {
	wanted := request.GetConfig()
	if err := checkFleetConfig(wanted); err != nil {
		return nil, s.statusOf(err)
	}
	view, err := s.view(ctx)
	if err != nil {
		return nil, err
	}
	response := &slimcppb.PreviewFleetConfigResponse{Index: view.Index()}
	if !proto.Equal(view.Fleet(), wanted) {
		rendered, err := RenderSegments(ctx, view, wanted)
		if err != nil {
			return nil, s.statusOf(argumentError("%v", err))
		}
		change := view.FleetChange(wanted, rendered)
		response.Changed = true
		response.Changes = append(change.Lines(), caseHints(view, wanted)...)
		if view.FleetRevision() > 0 {
			response.Losses = change.Losses()
		}
	}
	return response, nil
}

// RenderSegments renders the template of a document, if it has one, for the groups that
// there are.
func RenderSegments(ctx context.Context, view *fsm.View, config *slimcppb.FleetConfig) (*slimcppb.RenderedSegments, error) {
	groups := view.TemplateGroups()
	if !fsm.UsesTemplate(config) || len(groups) == 0 {
		return nil, nil
	}
	source := config.GetTopology().GetSegmentsTemplate()
	segments, err := segmenttemplate.Segments(ctx, source, groups)
	if err != nil {
		return nil, err
	}
	return fsm.NewRenderedSegments(source, groups, segments)
}

// checkFleetConfig refuses what no file could say.
func checkFleetConfig(config *slimcppb.FleetConfig) error {
	if config == nil {
		return argumentError("config must not be empty")
	}
	if config.GetRegistrationAuth() == "" {
		return argumentError("registration_auth \"\": accepted are %q and %q", fsm.NoAuth, fsm.SharedSecret)
	}
	if problems := fsm.FleetProblems(config); len(problems) > 0 {
		return argumentError("%s", problems[0])
	}
	if fsm.UsesTemplate(config) {
		if _, err := segmenttemplate.Parse(config.GetTopology().GetSegmentsTemplate()); err != nil {
			return argumentError("%v", err)
		}
	}
	return nil
}
