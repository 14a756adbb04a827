package main

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

// A socket that nobody listens on is left from a process that was killed.
func TestAStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	alive, err := listenNorth("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer alive.Close()
	if second, err := listenNorth("unix", path); err == nil {
		_ = second.Close()
		t.Error("the socket of a process that listens was taken")
	}
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
}

func TestAFileIsNotTakenForASocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n.sock")
	if err := os.WriteFile(path, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if listener, err := listenNorth("unix", path); err == nil {
		_ = listener.Close()
		t.Error("a file was replaced")
	}
	if content, err := os.ReadFile(path); err != nil || string(content) != "kept" {
		t.Errorf("%q, %v", content, err)
	}
}
