//go:build !race

package reconciler_test

// defaultRounds of the model test.
const defaultRounds = modelRounds
