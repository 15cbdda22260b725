package sim

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/invariant"
	"github.com/csilab/csilab/sim/ledger"
)

// observations are what can be seen only while it happens.
type observations struct {
	mu       sync.Mutex
	formats  []invariant.Format
	promises []invariant.Promise
	detaches []invariant.Detach

	detaching map[uint64]detaching // by the call that has begun
	deletes   map[uint64][]string  // DeleteVolume calls that have begun: the volume's sides on arrays
	forced    map[string]uint64    // by VolumeAttachment: the call that deleted it by force
	cut       map[onNode]bool      // detached by force, and not attached again
}

// into copies the observations into a world.
func (s *observations) into(w *invariant.World) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Formats, w.Promises, w.Detaches = slices.Clone(s.formats), slices.Clone(s.promises), slices.Clone(s.detaches)
}

// observe sees every call that is about to happen: an mkfs is noted with what
// its device holds at that moment, a detach with where the volume is mounted.
func (l *Lab) observe(seq uint64, c fault.Call) {
	switch {
	case l.backend == nil:
	case c.Hop == ledger.Host && strings.HasPrefix(c.Op, "exec mkfs."):
		l.formatting(c)
	case c.Hop == ledger.Kube && c.Op == "delete volumeattachments":
		l.releasing(seq, c)
	case c.Hop == ledger.CSI && c.Op == "ControllerUnpublishVolume", l.isDetach(c):
		l.detach(seq, c)
	case c.Hop == ledger.CSI && c.Op == "DeleteVolume":
		l.deleting(seq, c)
	}
}

// deleting notes where a volume is that is to be deleted: of one on a pair of
// arrays, only one side may know whose it is.
func (l *Lab) deleting(seq uint64, c fault.Call) {
	b, ok := l.backend.(*hpe)
	if !ok {
		return
	}
	sides := b.sides(c.Volume)
	l.seen.mu.Lock()
	defer l.seen.mu.Unlock()
	if l.seen.deletes == nil {
		l.seen.deletes = map[uint64][]string{}
	}
	l.seen.deletes[seq] = sides
}

// leftSides are the sides of a volume that are there after its deletion.
func (l *Lab) leftSides(seq uint64) string {
	l.seen.mu.Lock()
	sides := l.seen.deletes[seq]
	delete(l.seen.deletes, seq)
	l.seen.mu.Unlock()
	b, ok := l.backend.(*hpe)
	if !ok {
		return ""
	}
	for _, s := range sides {
		if b.hasSide(s) {
			return "virtual volume " + s + " is still there"
		}
	}
	return ""
}

func (l *Lab) formatting(c fault.Call) {
	tool := strings.TrimPrefix(c.Op, "exec mkfs.")
	n := l.node(c.Node)
	if n == nil {
		return
	}
	f := invariant.Format{Node: n.Name, Tool: "mkfs." + tool}
	serial := n.serials()
	for _, arg := range strings.Fields(c.Request) {
		if strings.HasPrefix(arg, "/dev/") {
			f.Serial = serial(arg)
		}
	}
	f.HadData = l.holdsData(n, f.Serial)
	if f.HadData {
		defer l.ring()
	}
	l.seen.mu.Lock()
	defer l.seen.mu.Unlock()
	l.seen.formats = append(l.seen.formats, f)
}

// holdsData says whether a disk has a finished filesystem, or its volume data
// that a pod wrote to it as a raw device.
func (l *Lab) holdsData(n *Node, serial string) bool {
	id, img, ok := l.backend.content(n, serial)
	if !ok {
		return false
	}
	defer img.Close()
	if filesystem(img) != "" {
		return true
	}
	l.data.mu.Lock()
	defer l.data.mu.Unlock()
	return len(l.data.volumes[id]) > 0
}

// ended sees every call that ended, before its caller hears of it.
func (l *Lab) ended(e ledger.Entry) {
	if l.backend == nil {
		return
	}
	l.detached(e)
	l.promised(e)
}

// promised looks at the backend at the moment when a call says that something
// is gone, and notes it when it is not.
func (l *Lab) promised(e ledger.Entry) {
	if e.Hop != ledger.CSI {
		return
	}
	left := ""
	if e.Op == "DeleteVolume" {
		left = l.leftSides(e.Seq)
	}
	if e.Outcome != ledger.OK {
		return
	}
	p := invariant.Promise{Call: e.Op}
	switch e.Op {
	case "ControllerUnpublishVolume":
		p.Subject = e.Volume + " on " + e.Node
		n := l.nodeByID(e.Node)
		for _, x := range l.backend.exportsOf(e.Volume) {
			if n != nil && x.Node == n.Name {
				p.StillThere = "its disk " + x.Serial + " is still there"
			}
		}
	case "DeleteVolume":
		p.Subject, p.StillThere = e.Volume, left
		for _, v := range l.backend.volumes() {
			if v.id == e.Volume {
				p.StillThere = "the volume is still there"
			}
		}
	case "DeleteSnapshot":
		p.Subject = e.Snapshot
		for _, s := range l.backend.snapshots() {
			if s.id == e.Snapshot {
				p.StillThere = "the snapshot is still there"
			}
		}
	case "NodeUnstageVolume", "NodeUnpublishVolume":
		n := l.node(e.Node)
		path := requestPath(e.Request)
		if n == nil || path == "" {
			return
		}
		p.Subject = e.Volume + " at " + path + " on " + n.Name
		ms, err := n.host.Mounter().List()
		if err != nil {
			return
		}
		for _, m := range ms {
			if m.Path == path {
				p.StillThere = fmt.Sprintf("%s is still mounted from %s", path, m.Device)
			}
		}
	default:
		return
	}
	if p.StillThere == "" {
		return // nobody asks for those that were kept
	}
	defer l.ring()
	l.seen.mu.Lock()
	defer l.seen.mu.Unlock()
	if !slices.Contains(l.seen.promises, p) {
		l.seen.promises = append(l.seen.promises, p)
	}
}

// requestPath reads target_path or staging_target_path out of a digest.
func requestPath(digest string) string {
	for _, key := range []string{`"target_path":"`, `"staging_target_path":"`} {
		if i := strings.Index(digest, key); i >= 0 {
			rest := digest[i+len(key):]
			if j := strings.IndexByte(rest, '"'); j >= 0 {
				return rest[:j]
			}
		}
	}
	return ""
}
