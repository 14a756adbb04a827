package fleetconfig

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/slim-cp/slim-cp/config"
)

// TestFromSettingsIsTheSameEachTime: replicas compare documents.
func TestFromSettingsIsTheSameEachTime(t *testing.T) {
	settings := config.Default()
	settings.RegistrationAuth.Type = config.RegistrationSharedSecret
	settings.RegistrationAuth.Secrets = map[string]config.Secret{}
	for _, group := range strings.Fields("m a z b y c x d") {
		settings.RegistrationAuth.Secrets[group] = config.Secret("secret of " + group)
	}
	want := FromSettings(settings)
	if want.GetRegistrationAuth() != "shared_secret" || len(want.GetSecrets()) != 8 || string(want.GetSecrets()[0].GetSecret()) != "secret of a" {
		t.Errorf("converted to %v", want)
	}
	for range 10 {
		if got := FromSettings(settings); !proto.Equal(got, want) {
			t.Fatalf("converted to\n%v\nand\n%v", want, got)
		}
	}
}
