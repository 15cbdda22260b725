package host

import (
	"errors"
	"slices"
	"syscall"

	"github.com/csilab/csilab/sim/host/scsi"
)

// I/O that waits for a path. The operation that wants it is undone, as far as it
// got, lets others in, and is done again when the wait may be over. What the
// kernel would hold all the time, the use of the mount or device, stays held.

// under is what the operation that has the kernel now does.
type under struct {
	queued bool     // its I/O has to wait; its result is none
	mount  *mounted // it has a file of it open
	dev    *device  // it has it open
	rest   func()   // what is left of it to do; nil: all of it
}

// during runs an operation with the kernel locked, for as many times as its I/O
// has to wait. As with a process in uninterruptible sleep nothing ends the wait
// but a path, the end of the queue, or the node's.
func during[T any](h *Memory, op, p string, f func() (T, error)) (v T, err error) {
	for do := f; ; {
		leave, oerr := h.enter(op, p)
		if oerr != nil {
			var none T
			return none, oerr
		}
		h.now = under{}
		v, err = do()
		u := h.now
		if !u.queued {
			leave()
			return v, err
		}
		if u.rest != nil {
			done, derr := v, err
			do = func() (T, error) { u.rest(); return done, derr }
		}
		u.hold(1)
		woken := h.waiting.line(h.turn)
		leave()
		<-woken
		h.mu.Lock()
		u.hold(-1)
		if u.dev != nil {
			h.settle(u.dev)
		}
		lost := h.lost(u.mount)
		h.mu.Unlock()
		if lost {
			var none T
			return none, pathError(op, p, syscall.EIO)
		}
	}
}

func (u under) hold(n int) {
	if u.mount != nil {
		u.mount.busy += n
	}
	if u.dev != nil {
		u.dev.opens += n
	}
}

// turn is the path checker's.
func (h *Memory) turn() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.off && !h.closed && h.scsi != nil {
		h.scsi.Turn()
		h.udev()
	}
	h.waiting.wake()
}

// lost says whether a mount of a share was taken away lazily while somebody
// waited in it. A process would wait on, in what nobody sees any more; here its
// operation fails as after umount -f, for doing it again would be done to what is
// at the path now.
func (h *Memory) lost(m *mounted) bool {
	return m != nil && m.remote != nil && !h.off && !slices.Contains(h.ns.table, m)
}

// act is during for what has no result.
func (h *Memory) act(op, p string, f func() error) error {
	_, err := during(h, op, p, func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// queues notes that I/O has to wait.
func (h *Memory) queues(err error) error {
	if errors.Is(err, scsi.ErrQueued) {
		if h.waiting.over {
			return syscall.EIO
		}
		h.now.queued = true
	}
	return err
}

// FailQueued ends all waits for paths with EIO, now and until the next boot:
// whoever takes the power from a node that is in use does this first.
func (h *Memory) FailQueued() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting.end()
}

// shutDown finishes filesystems that were unmounted: everything is written out,
// which nobody is told of when it fails, and the devices are let go.
func (h *Memory) shutDown() {
	left := h.leaving[:0]
	for _, sb := range h.leaving {
		v := sb.vol
		err := sb.sync()
		if errors.Is(err, scsi.ErrQueued) {
			left = append(left, sb)
			h.now.rest = h.shutDown
			continue
		}
		if err != nil {
			h.log.Warn("data lost at unmount", "node", h.cfg.Name, "device", v.dev.name, "error", err)
		}
		v.dev.refs--
		h.settle(v.dev)
		h.waiting.wake() // somebody may want to mount the device
	}
	h.leaving = left
}
