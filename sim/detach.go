package sim

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/invariant"
	"github.com/csilab/csilab/sim/kube/attachdetach"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

// onNode is a volume on a node.
type onNode struct{ node, volume string }

// detaching is a detach that has begun.
type detaching struct {
	invariant.Detach
	serial string // of the node's disk, "" where there is none
}

// isDetach says whether a call takes a volume from a node at the backend, for
// the driver: an administrator's detach is a fault, and no one's mistake.
func (l *Lab) isDetach(c fault.Call) bool {
	if c.Hop != l.StorageHop() {
		return false
	}
	if l.opts.Backend != VSphere {
		return c.Op == l.Operations().Detach
	}
	// The task is what carries it out.
	if c.Op != "task:"+l.Operations().Detach {
		return false
	}
	by, ok := l.Ledger.Get(c.Cause)
	return !ok || by.Component == "driver-controller"
}

// releasing notes that an attachment is given up by force: by the control plane,
// which says so, or by a user.
func (l *Lab) releasing(seq uint64, c fault.Call) {
	name, why, _ := strings.Cut(c.Request, " ")
	if c.Component != "user" && !strings.Contains(why, invariant.ForceDetach) {
		return
	}
	l.seen.mu.Lock()
	defer l.seen.mu.Unlock()
	if l.seen.forced == nil {
		l.seen.forced = map[string]uint64{}
	}
	l.seen.forced[name] = seq
}

// detach notes a detach that begins: where its node has the volume mounted.
func (l *Lab) detach(seq uint64, c fault.Call) {
	n := l.node(c.Node)
	if n == nil {
		n = l.nodeByID(c.Node)
	}
	if n == nil || c.Volume == "" {
		return
	}
	d := detaching{Detach: invariant.Detach{VolumeID: c.Volume, Node: n.Name, Seq: seq, Fenced: n.fenced()}}
	d.serial = n.serialOf(c.Volume)
	if !d.Fenced {
		d.Mounted = n.mountedAt(c.Volume, d.serial)
	}
	l.seen.mu.Lock()
	defer l.seen.mu.Unlock()
	d.Forced = l.seen.forced[attachdetach.AttachmentName(c.Volume, l.DriverName(), n.Name)]
	if l.seen.detaching == nil {
		l.seen.detaching = map[uint64]detaching{}
	}
	l.seen.detaching[seq] = d
}

// detached looks at a call that ended: after a detach the node must not reach
// the volume any more, and after an attach it may again.
func (l *Lab) detached(e ledger.Entry) {
	switch {
	case e.Hop == ledger.CSI && e.Op == "ControllerPublishVolume" && e.Outcome == ledger.OK:
		if n := l.nodeByID(e.Node); n != nil {
			l.seen.mu.Lock()
			delete(l.seen.cut, onNode{n.Name, e.Volume})
			delete(l.seen.forced, attachdetach.AttachmentName(e.Volume, l.DriverName(), n.Name))
			l.seen.mu.Unlock()
		}
		return
	case e.Hop != ledger.CSI && e.Hop != l.StorageHop():
		return
	}
	l.seen.mu.Lock()
	d, ok := l.seen.detaching[e.Seq]
	delete(l.seen.detaching, e.Seq)
	l.seen.mu.Unlock()
	if !ok || e.Outcome == ledger.Failed || e.Outcome == ledger.Refused {
		return
	}
	if e.Hop == ledger.CSI { // what it means at the backend is told there
		if !isShare(d.serial) { // that is taken from a node by no call of its own
			d.Mounted = nil
		}
		if e.Outcome == ledger.OK && !d.Fenced && d.serial != "" {
			d.Reaches = l.reaches(d.Node, d.VolumeID, d.serial)
		}
	}
	if len(d.Mounted) > 0 && d.Forced == 0 && !d.Fenced || d.Reaches != "" {
		defer l.ring()
	}
	l.seen.mu.Lock()
	defer l.seen.mu.Unlock()
	if d.Forced != 0 {
		if l.seen.cut == nil {
			l.seen.cut = map[onNode]bool{}
		}
		l.seen.cut[onNode{d.Node, d.VolumeID}] = true
	}
	if len(d.Mounted) > 0 || d.Reaches != "" {
		l.seen.detaches = append(l.seen.detaches, d.Detach)
	}
}

// isCut says whether a volume was detached from a node by force.
func (s *observations) isCut(node, volume string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cut[onNode{node, volume}]
}

// reaches says how a node reaches a volume's disk that was taken from it; "" is not
// at all.
func (l *Lab) reaches(node, volume, serial string) string {
	n := l.node(node)
	if slices.ContainsFunc(l.backend.exportsOf(volume), func(x invariant.Export) bool { return x.Node == node && x.Serial == serial }) {
		return "" // it was given again, or is there still: I5's business
	}
	if n.host.Kind() == "real" {
		return "" // a look at a device that is going would hold it there
	}
	if h, ok := n.host.(interface{ Waits(device string) bool }); ok && h.Waits(byID(serial)) {
		return "" // it has no path, and the I/O waits for one
	}
	if _, err := n.host.ReadAt(byID(serial), 0, 512); err != nil {
		return ""
	}
	return fmt.Sprintf("reading device %s works", serial)
}

// serialOf is the serial of a volume's disk in a node, "" where there is none.
// It asks no vCenter, which may be locked by the task that wants to know.
func (n *Node) serialOf(volumeID string) string {
	if n.lab.opts.Backend == VSphere {
		n.mu.Lock()
		defer n.mu.Unlock()
		for serial, p := range n.images {
			if p.id == volumeID { // an image has its volume's id
				return serial
			}
		}
		return ""
	}
	for _, x := range n.lab.backend.exportsOf(volumeID) {
		if x.Node == n.Name {
			return x.Serial
		}
	}
	if b, ok := n.lab.backend.(*hpe); ok {
		return b.shareSource(volumeID) // one that is for everybody is exported to no node
	}
	return ""
}

// fenced says whether a node's access counts as gone.
func (n *Node) fenced() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.off || n.forgotten
}

// mountedAt are the paths at which a node has a volume mounted: from its disk,
// or where a kubelet has its pods' raw devices.
func (n *Node) mountedAt(volumeID, serial string) (paths []string) {
	ms, err := n.host.Mounter().List()
	if err != nil {
		return nil
	}
	pv := ""
	for _, p := range store.SeeBy[corev1.PersistentVolume](n.lab.user, store.VolumesByHandle, store.VolumeKey(n.lab.DriverName(), volumeID)) {
		pv = p.Name
	}
	raw := kubeletRoot + "/plugins/kubernetes.io/csi/volumeDevices/publish/" + pv + "/"
	of := n.serials()
	for _, m := range ms {
		if serial != "" && of(m.Device) == serial || pv != "" && strings.HasPrefix(m.Path, raw) {
			paths = append(paths, m.Path)
		}
	}
	return paths
}
