package config_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/slim-cp/slim-cp/config"
)

// A warning often names the reason of an error: who mends the one wants to see both.
func TestWarningsStandBesideErrors(t *testing.T) {
	_, err := config.Parse("x.yaml", []byte("sesions: {}\nreconciler: {workers: x}\n"))
	var refused config.Errors
	if !errors.As(err, &refused) {
		t.Fatalf("got %v", err)
	}
	if errors, warnings := refused.Lines(), refused.Warnings(); len(errors) != 1 || len(warnings) != 1 ||
		!strings.Contains(warnings[0], "did you mean sessions?") || strings.Contains(err.Error(), "sesions") {
		t.Errorf("errors %q, warnings %q", errors, warnings)
	}
}

func TestUnknownKeysThatMeanAKnownOne(t *testing.T) {
	for key, want := range map[string]string{
		"sesions": "sessions", "SESSIONS": "sessions", "sessinos": "sessions",
		"enforce-node-connection": "enforce_node_connection", "admn": "admin", "limit": "limits",
		"add": "", "cl": "", "x": "", "toposort": "", strings.Repeat("sessions", 100): "",
	} {
		c, err := config.Parse("x.yaml", []byte(key+": {}\n"))
		if err != nil {
			t.Errorf("%.20s: %v", key, err)
			continue
		}
		if _, meant, _ := strings.Cut(strings.Join(c.Warnings, "\n"), "did you mean "); strings.TrimSuffix(meant, "?") != want {
			t.Errorf("%.20s: %.200q, want %q", key, c.Warnings, want)
		}
	}
}

// Without these a file would start another control plane than it describes.
func TestMisspelledSectionsAreErrors(t *testing.T) {
	for key, want := range map[string]string{
		"northbuond": "northbound", "south_bound": "southbound", "Topology": "topology", "databse": "database", "clusters": "cluster",
	} {
		_, err := config.Parse("x.yaml", []byte(key+": {}\n"))
		if err == nil || !strings.Contains(err.Error(), "x.yaml:1: "+key+": unknown key") || !strings.HasSuffix(err.Error(), "did you mean "+want+"?") {
			t.Errorf("%s: %v", key, err)
		}
	}
}
