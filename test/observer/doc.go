// Package observer watches a control plane through its northbound API, as an
// operator would: it lists nodes, links and routes, and waits for a state with
// a deadline.
package observer
