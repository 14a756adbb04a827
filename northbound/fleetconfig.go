package northbound

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/fsm"
	"github.com/slim-cp/slim-cp/proto/slimcp/v1"
)

// Kinds of registration authentication beside fsm.SharedSecret.
const (
	authNone  = "none"
	authSpire = "spire"
)

// ApplyFleetConfig makes a fleet configuration the active one (protocol T1, T2).
// The document is complete: what it leaves out is not taken from the active one.
// One that equals the active one changes nothing.
func (s *Service) ApplyFleetConfig(ctx context.Context, request *slimcppb.ApplyFleetConfigRequest) (*slimcppb.ApplyFleetConfigResponse, error) {
	wanted := request.GetConfig()
	response := &slimcppb.ApplyFleetConfigResponse{}
	result, err := s.mutate(ctx, mutation{
		action: "apply fleet configuration",
		subject: []any{
			"segments", len(wanted.GetTopology().GetSegments()),
			"registration_auth", wanted.GetRegistrationAuth(),
			"secrets", len(wanted.GetSecrets()),
		},
		refused: checkFleetConfig(wanted),
		judge: func(view *fsm.View) error {
			if proto.Equal(view.Fleet(), wanted) {
				return errUnchanged
			}
			response.Changed = true
			return nil
		},
		command: &slimcppb.Command{Payload: &slimcppb.Command_SetFleetConfig{
			SetFleetConfig: &slimcppb.SetFleetConfig{Config: wanted},
		}},
	})
	response.Index = result.Index
	return response, err
}

// checkFleetConfig refuses what no file could say.
func checkFleetConfig(config *slimcppb.FleetConfig) error {
	auth := config.GetRegistrationAuth()
	switch {
	case config == nil:
		return argumentError("config must not be empty")
	case auth != authNone && auth != fsm.SharedSecret && auth != authSpire:
		return argumentError("registration_auth %q: accepted are %q, %q and %q", shown(auth), authNone, fsm.SharedSecret, authSpire)
	case auth != fsm.SharedSecret && len(config.GetSecrets()) > 0:
		return argumentError("secrets: accepted only with registration_auth %q", fsm.SharedSecret)
	case auth == fsm.SharedSecret && len(config.GetSecrets()) == 0 && len(config.GetTopology().GetSegments()) > 0:
		return argumentError("secrets: at least one is needed beside a topology, since operators cannot add groups then")
	}
	for _, secret := range config.GetSecrets() {
		if secret.GetGroup() == "" {
			return argumentError("secrets: group must not be empty")
		}
		if err := checkGroup(secret.GetGroup()); err != nil {
			return err
		}
		if secret.GetKeyId() == "" && len(secret.GetSecret()) < fsm.MinSecretBytes {
			return argumentError("secret of group '%s' is too short: at least %d bytes are accepted", secret.GetGroup(), fsm.MinSecretBytes)
		}
	}
	return nil
}
