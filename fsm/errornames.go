package fsm

import (
	"errors"
)

// otherError names an error that is none of this package's.
const otherError = "other"

// errorName is an error that Apply may answer with or that reading a snapshot
// may give, and its name.
type errorName struct {
	name string
	err  error
}

// errorNames lists every exported error of the package. A name is the same in
// every version: it stands in snapshots and travels between replicas of different
// versions. Of an error that wraps several, the first of the list counts.
func errorNames() []errorName {
	return []errorName{
		{"unknown_command", ErrUnknownCommand},
		{"schema", ErrSchema},
		{"inactive_schema", ErrInactiveSchema},
		{"earlier_start", ErrEarlierStart},
		{"old_schema", ErrOldSchema},
		{"not_initialised", ErrNotInitialised},
		{"initialised", ErrInitialised},
		{"stale_generation", ErrStaleGeneration},
		{"stale_term", ErrStaleTerm},
		{"stale_sequence", ErrStaleSequence},
		{"session_ended", ErrSessionEnded},
		{"unknown_session", ErrUnknownSession},
		{"unknown_node", ErrUnknownNode},
		{"unknown_link", ErrUnknownLink},
		{"unknown_segment", ErrUnknownSegment},
		{"unknown_edge", ErrUnknownEdge},
		{"default_segment", ErrDefaultSegment},
		{"config_managed", ErrConfigManaged},
		{"not_shared_secret", ErrNotSharedSecret},
		{"short_secret", ErrShortSecret},
		{"no_secret", ErrNoSecret},
		{"replayed", ErrReplayed},
		{"unjudged", ErrUnjudged},
		{"replica_removed", ErrReplicaRemoved},
		{"other_cluster", ErrOtherCluster},
		{"snapshot", ErrSnapshot},
		{"many_requests", ErrManyRequests},
		{"invalid", ErrInvalid},
		{"stale", ErrStale},
		{"bad_id", ErrBadID},
		{"bad_name", ErrBadName},
		{"groups_changed", ErrGroupsChanged},
	}
}

// ErrorName returns the stable name of the error of this package that err is or
// wraps, "other" if there is none, and "" for nil. With NamedError it carries a
// Result's error to another replica.
func ErrorName(err error) string {
	if err == nil {
		return ""
	}
	for _, known := range errorNames() {
		if errors.Is(err, known.err) {
			return known.name
		}
	}
	return otherError
}

// NamedError returns an error with the message that errors.Is the error of this
// package with the name. For a name that this version does not know it is an
// error with the message and nothing more; for "" it is nil.
func NamedError(name, message string) error {
	if name == "" {
		return nil
	}
	for _, known := range errorNames() {
		if known.name == name {
			return &namedError{sentinel: known.err, message: message}
		}
	}
	return errors.New(message)
}

// namedError is an error that was read from a message or a snapshot.
type namedError struct {
	sentinel error
	message  string
}

func (e *namedError) Error() string { return e.message }

// Unwrap makes errors.Is find the sentinel.
func (e *namedError) Unwrap() error { return e.sentinel }
