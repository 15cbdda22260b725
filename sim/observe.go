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
}

// observe sees every call that is about to happen: an mkfs is noted with what
// its device holds at that moment.
func (l *Lab) observe(c fault.Call) {
	tool, ok := strings.CutPrefix(c.Op, "exec mkfs.")
	if !ok || c.Hop != ledger.Host {
		return
	}
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

// promised looks at the backend at the moment when a call says that something
// is gone, before its caller hears of it.
func (l *Lab) promised(e ledger.Entry) {
	if e.Hop != ledger.CSI || e.Outcome != ledger.OK || l.backend == nil {
		return
	}
	p := invariant.Promise{Call: e.Op}
	switch e.Op {
	case "ControllerUnpublishVolume":
		p.Subject = e.Volume + " on " + e.Node
		n := l.nodeByID(e.Node)
		for _, x := range l.backend.exports() {
			if n != nil && x.VolumeID == e.Volume && x.Node == n.Name {
				p.StillThere = "its disk " + x.Serial + " is still there"
			}
		}
	case "DeleteVolume":
		p.Subject = e.Volume
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
	if p.StillThere != "" {
		defer l.ring()
	}
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
