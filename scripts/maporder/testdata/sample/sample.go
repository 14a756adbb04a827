// Package sample has one function for each way to go through a map.
package sample

import (
	"maps"
	"slices"
)

func bare(m map[string]int) (keys []string) {
	for key := range m { // want
		keys = append(keys, key)
	}
	return keys
}

type named map[string]int

func ofNamedType(m named) (keys []string) {
	for key := range m { // want
		keys = append(keys, key)
	}
	return keys
}

func unsorted(m map[string]int) []string {
	return slices.Collect(maps.Keys(m)) // want
}

func sorted(m map[string]int) []string {
	return slices.Sorted(maps.Keys(m))
}

func explained(m map[string]int) (sum int) {
	// any order: addition commutes
	for _, value := range m {
		sum += value
	}
	return sum
}

func slice(s []string) (n int) {
	for range s {
		n++
	}
	return n
}
