package main

import "runtime"

// heapFloor counts as in use for the garbage collector, which runs when the heap has
// doubled: under load the few megabytes of a small fleet's state would double tens of
// times a second. It is never touched, so it takes address space and no memory.
const heapFloor = 64 << 20 // bytes

// keepHeapFloor holds the floor until the returned function is called.
func keepHeapFloor() (release func()) {
	floor := make([]byte, heapFloor)
	return func() { runtime.KeepAlive(floor) }
}
