package main

import "github.com/slim-cp/slim-cp/cmd/operator"

// version is stamped by the build (-ldflags "-X main.version=...").
var version string

// versionText is the version of this binary, for people and for the other replicas.
func versionText() string { return operator.Version(version) }
