package northbound

import (
	"context"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
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
	result, err := s.mutate(ctx, mutation{
		action:  "apply fleet configuration",
		subject: subject,
		refused: checkFleetConfig(wanted),
		fresh:   true, // an older view may lack the nodes and links that would be lost
		judge: func(view *fsm.View) error {
			if proto.Equal(view.Fleet(), wanted) {
				return errUnchanged
			}
			change := view.FleetChange(wanted)
			response.Changed = true
			response.Changes = append(change.Lines(), caseHints(view, wanted)...)
			if losses := change.Losses(); len(losses) > 0 && view.FleetRevision() > 0 && !request.GetForce() {
				return &refusal{text: "it needs --force: " + strings.Join(losses, "; "), cause: errNeedsForce}
			}
			return nil
		},
		command: &slimcppb.Command{Payload: &slimcppb.Command_SetFleetConfig{
			SetFleetConfig: &slimcppb.SetFleetConfig{Config: wanted},
		}},
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
		change := view.FleetChange(wanted)
		response.Changed = true
		response.Changes = append(change.Lines(), caseHints(view, wanted)...)
		if view.FleetRevision() > 0 {
			response.Losses = change.Losses()
		}
	}
	return response, nil
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
	return nil
}
