// Package spt computes shortest path trees over an undirected graph of groups.
//
// Every edge has weight one, so a tree is found breadth first. Where several
// parents are equally near the root, the smallest name wins (protocol N4). The
// trees depend on the graph alone: the order in which vertices and edges were
// added changes nothing, and so every replica that holds the same graph
// computes the same trees.
//
// A Graph comes from a Builder and never changes afterwards; it and its trees
// may be read by any number of goroutines. Nothing here blocks or keeps state
// between calls.
//
// # Cost
//
// A vertex that is adjacent to all others is universal and is stored as one
// flag, whether it was declared with AddUniversal or got there edge by edge. A
// star or a full mesh of n groups thus takes memory in the order of n, and so
// does each of its trees. In any other graph a tree costs the number of
// vertices and edges at most, and often less, for the search stops once all
// vertices are reached.
package spt
