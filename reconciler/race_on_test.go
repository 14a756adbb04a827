//go:build race

package reconciler_test

// defaultRounds is small under the race detector: it remembers every stack that
// it sees, and after some hundred thousand goroutines in bubbles its runtime
// crashes (a fault of its own, in its depot of stacks). "make test" runs all
// rounds without it.
const defaultRounds = 1
