// Package segments is the model by which tests judge what concurrent operators were
// told: each segment of the topology is a register that says whether it is there.
package segments
