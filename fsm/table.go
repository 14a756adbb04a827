package fsm

import (
	"iter"

	"github.com/tidwall/btree"
)

// table is an ordered set of immutable records. Copying it costs O(1); a copy
// and its original are independent and may be used by different goroutines.
type table[T any] struct {
	tree *btree.BTreeG[T]
}

func newTable[T any](less func(a, b T) bool) table[T] {
	// The tree's own lock is not needed: one goroutine writes, and readers hold
	// copies that nobody writes.
	return table[T]{tree: btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})}
}

func (t table[T]) copy() table[T]      { return table[T]{tree: t.tree.IsoCopy()} }
func (t table[T]) len() int            { return t.tree.Len() }
func (t table[T]) get(key T) (T, bool) { return t.tree.Get(key) }
func (t table[T]) set(record T)        { t.tree.Set(record) }
func (t table[T]) delete(key T)        { t.tree.Delete(key) }
func (t table[T]) has(key T) bool      { _, ok := t.tree.Get(key); return ok }
func (t table[T]) first() (T, bool)    { return t.tree.Min() }
func (t table[T]) all() iter.Seq[T]    { return func(yield func(T) bool) { t.tree.Scan(yield) } }
func (t table[T]) from(key T) iter.Seq[T] {
	return func(yield func(T) bool) { t.tree.Ascend(key, yield) }
}

// lastBefore returns the greatest record that is not greater than the key.
func (t table[T]) lastBefore(key T) (last T, ok bool) {
	t.tree.Descend(key, func(record T) bool {
		last, ok = record, true
		return false
	})
	return last, ok
}
