package config_test

import (
	"testing"
	"time"

	"github.com/slim-cp/slim-cp/config"
)

func TestReconcilerDefaults(t *testing.T) {
	want := config.Reconciler{
		MaxRequeues: 15, BaseRetryDelay: 200 * time.Millisecond, ReconcilePeriod: time.Minute, Workers: 4,
	}
	if got := config.Default().Reconciler; got != want {
		t.Errorf("without a file: %+v", got)
	}
	settings, err := config.Parse("x.yaml", []byte("reconciler: {workers: 9}"))
	if err != nil {
		t.Fatal(err)
	}
	if want.Workers = 9; settings.Reconciler != want {
		t.Errorf("beside one key: %+v", settings.Reconciler)
	}
}
