package host

import (
	"time"

	"github.com/csilab/csilab/sim/host/scsi"
)

// waiting is where I/O of a node waits for a path (scsi.ErrQueued). Whoever owns
// it serialises all calls.
type waiting struct {
	woken   chan struct{} // nil: nobody waits
	checker *time.Timer   // the next turn of multipathd's path checker
	over    bool          // nobody waits any more
}

// line joins those who wait: what it returns is closed when it may be over. turn
// is called, in a goroutine of its own, when the path checker has its turn.
func (w *waiting) line(turn func()) <-chan struct{} {
	if w.woken == nil {
		w.woken = make(chan struct{})
		w.checker = time.AfterFunc(scsi.PollingInterval, turn)
	}
	return w.woken
}

// end lets nobody wait any more.
func (w *waiting) end() {
	w.over = true
	w.wake()
}

// wake lets all who wait try again.
func (w *waiting) wake() {
	if w.woken != nil {
		w.checker.Stop()
		close(w.woken)
		w.woken, w.checker = nil, nil
	}
}
