package southbound

import "time"

// silenceSteps is how many steps the time until a node counts as silent is counted
// in. When this process does not run, no step passes.
const silenceSteps = 10

// handedOver starts the time in which the node should answer: the message is given
// to the stream now. Where it waited before is not the node's doing.
func (st *stream) handedOver(id string, w *waiter) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.waiters[id] == w && w.silent != nil {
		w.silence = time.AfterFunc(SilentAfter/silenceSteps, func() { st.countSilence(id, w) })
	}
}

// countSilence counts a step in which the node said nothing about a request. While
// what it said before is being handled, its answer may wait behind that.
func (st *stream) countSilence(id string, w *waiter) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.waiters[id] != w {
		return
	}
	if !st.handling.Load() {
		w.quiet++
	}
	if w.quiet >= silenceSteps {
		w.quiet = 0
		go w.silent()
	}
	w.silence.Reset(SilentAfter / silenceSteps)
}
