package kubeletsim

import "time"

// opKey is what an operation excludes others on: a volume for one pod, or the
// volume for all pods when pod is empty.
type opKey struct {
	volume volumeName
	pod    string // uid
}

// opName is the kind of an operation. An operation of another kind on the same
// key is not held up by the back-off of the former.
type opName string

const (
	opVerifyAttached opName = "verify_controller_attached_volume"
	opMount          opName = "volume_mount" // also of a block volume: map_volume
	opUnmount        opName = "volume_unmount"
	opUnmountDevice  opName = "unmount_device"
	opExpand         opName = "volume_fs_resize"
)

// backOff is the wait after failures in a row
// (pkg/util/goroutinemap/exponentialbackoff/exponential_backoff.go).
type backOff struct {
	wait time.Duration
	last time.Time
}

func (b *backOff) failed(now time.Time, first, most time.Duration) {
	switch {
	case b.wait == 0:
		b.wait = first
	default:
		b.wait = min(2*b.wait, most)
	}
	b.last = now
}

// until is when the next try is allowed.
func (b backOff) until() time.Time { return b.last.Add(b.wait) }

// operations are the volume operations that run or wait after a failure, with
// the rules of pkg/volume/util/nestedpendingoperations: an operation on all
// pods of a volume excludes every other on it, one on a pod only those on the
// same pod and those on all. It has no clock and no lock of its own.
type operations struct {
	first, most time.Duration
	byVolume    map[volumeName][]*pendingOp
}

type pendingOp struct {
	key     opKey
	name    opName
	running bool
	forPod  string // uid of the pod that the operation was started for
	backOff backOff
}

func newOperations(first, most time.Duration) *operations {
	return &operations{first: first, most: most, byVolume: map[volumeName][]*pendingOp{}}
}

// pass is how often kubelet's reconciler looks: 100 ms, a fifth of the first
// back-off (pkg/kubelet/volumemanager/volume_manager.go, reconcilerLoopSleepPeriod).
func (o *operations) pass() time.Duration { return o.first / 5 }

// find gives the running operation that excludes key, else the one whose
// back-off counts for it, else nil.
func (o *operations) find(key opKey) *pendingOp {
	var found *pendingOp
	for _, p := range o.byVolume[key.volume] {
		if p.key.pod != "" && key.pod != "" && p.key.pod != key.pod {
			continue
		}
		if p.running {
			return p
		}
		if found == nil || p.key.pod == key.pod {
			found = p
		}
	}
	return found
}

func (o *operations) running(key opKey) bool {
	p := o.find(key)
	return p != nil && p.running
}

// runningFor says whether an operation for the pod is under way.
func (o *operations) runningFor(pod string, v volumeName) bool {
	for _, p := range o.byVolume[v] {
		if p.running && p.forPod == pod {
			return true
		}
	}
	return false
}

// begin starts an operation. If it may not start, because of a back-off, retry
// is when; a zero retry means that another operation is in the way.
func (o *operations) begin(key opKey, name opName, forPod string, now time.Time) (ok bool, retry time.Time) {
	p := o.find(key)
	if p == nil {
		p = &pendingOp{}
		o.byVolume[key.volume] = append(o.byVolume[key.volume], p)
	} else {
		if p.running {
			return false, time.Time{}
		}
		if at := p.backOff.until(); p.backOff.wait > 0 && now.Before(at) {
			if p.name == name {
				return false, at
			}
			// Not before the reconciler's next pass: two operations that fail in turn
			// would otherwise take no time.
			if pass := p.backOff.last.Add(o.pass()); now.Before(pass) {
				return false, pass
			}
			// nestedpendingoperations.go:173: another operation resets the back-off.
			p.backOff = backOff{}
		}
	}
	p.key, p.name, p.running, p.forPod = key, name, true, forPod
	return true, time.Time{}
}

// end closes the running operation.
func (o *operations) end(key opKey, err error, now time.Time) {
	ops := o.byVolume[key.volume]
	for i, p := range ops {
		if p.key != key || !p.running {
			continue
		}
		if err != nil {
			p.running = false
			p.backOff.failed(now, o.first, o.most)
			return
		}
		ops = append(ops[:i:i], ops[i+1:]...)
		if len(ops) == 0 {
			delete(o.byVolume, key.volume)
		} else {
			o.byVolume[key.volume] = ops
		}
		return
	}
}
