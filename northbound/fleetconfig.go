package northbound

import (
	"context"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// authSpire is a kind of registration authentication beside fsm.NoAuth and
// fsm.SharedSecret.
const authSpire = "spire"

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
			response.Changed, response.Changes = true, change.Lines()
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
		response.Changed, response.Changes = true, change.Lines()
		if view.FleetRevision() > 0 {
			response.Losses = change.Losses()
		}
	}
	return response, nil
}

// checkFleetConfig refuses what no file could say.
func checkFleetConfig(config *slimcppb.FleetConfig) error {
	auth := config.GetRegistrationAuth()
	switch {
	case config == nil:
		return argumentError("config must not be empty")
	case auth != fsm.NoAuth && auth != fsm.SharedSecret && auth != authSpire:
		return argumentError("registration_auth %q: accepted are %q, %q and %q", shown(auth), fsm.NoAuth, fsm.SharedSecret, authSpire)
	case auth != fsm.SharedSecret && len(config.GetSecrets()) > 0:
		return argumentError("secrets: accepted only with registration_auth %q", fsm.SharedSecret)
	case auth == fsm.SharedSecret && len(config.GetSecrets()) == 0 && len(config.GetTopology().GetSegments()) > 0:
		return argumentError("secrets: at least one is needed beside a topology, since operators cannot add groups then")
	}
	for _, secret := range config.GetSecrets() {
		if secret.GetGroup() == "" {
			return argumentError("secrets: group must not be empty")
		}
		if err := checkSecretGroup(secret.GetGroup()); err != nil {
			return err
		}
		if secret.GetKeyId() == "" && len(secret.GetSecret()) < fsm.MinSecretBytes {
			return argumentError("secret of group '%s' is too short: at least %d bytes are accepted", secret.GetGroup(), fsm.MinSecretBytes)
		}
	}
	return nil
}
