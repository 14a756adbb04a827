// Package config reads the YAML configuration file of a replica.
//
// It accepts the files of upstream's control plane, with `domain` or with the
// older `group`, next to the keys that only slim-cp has. Parse turns such a file
// into a Config in which every value is typed, checked and filled with its
// default, so that nobody behind it has to look at a file again.
//
// # Problems
//
// A file with mistakes yields Errors: all of them, one line each, in the form
//
//	FILE:LINE: KEY: what stands there: accepted: what may stand there
//
// A key that nobody knows is only a warning, as it may belong to another
// version, except under `tracing`, where upstream refuses it too. Keys of the
// control plane before 1.5, which was written in Go, are an error that names
// today's key. What a file asks for and this version does not serve is no error
// here: Config.Unserved lists it, and the server refuses to start.
//
// # References
//
// In values, `${env:NAME}` stands for an environment variable and `${file:PATH}`
// for the content of a file; `$${` is a literal `${`. Messages show a value as
// it is written in the file, never what a reference stands for, and the values
// of secrets not at all.
package config
