// Package authority issues the TLS certificates of replicas under test.
package authority
