// Package chaos breaks a running cluster again and again, and judges what is left:
// five replicas, whose addresses are proxies that cut, delay and lead elsewhere, a
// fleet of nodes behind a balancer, and operators who never stop. Every fault
// between replicas that was ever found can come up here. A run prints its seed, and
// the same seed brings the same faults ("make chaos").
package chaos
