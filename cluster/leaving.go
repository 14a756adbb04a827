package cluster

import "context"

// MayLeave returns why the cluster would not let this replica go, nil if, as far
// as this replica sees, it would. The leader decides it again. It waits for a
// leader, and asks every member; the context bounds both.
func (r *Replica) MayLeave(ctx context.Context) error {
	if _, err := r.Read(ctx); err != nil {
		return err
	}
	own, ok := r.member(r.ReplicaID())
	if !ok {
		return nil // it has left already
	}
	return r.keepsQuorum(ctx, own)
}
