package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/san"
)

// What somebody does at an array's console, behind the back of the driver and
// its storage provider.

// ArrayVolume is the virtual volume of a claim, and the array that has it.
func (l *Lab) ArrayVolume(pvc string) (*san.Array, array.Volume, error) {
	b, err := l.onArrays()
	if err != nil {
		return nil, array.Volume{}, err
	}
	return b.find(l.VolumeID(pvc))
}

// ArrayExports are the exports of a claim's volume on the array that has it:
// one for each port and host, or for a host at all ports.
func (l *Lab) ArrayExports(pvc string) ([]array.VLUN, error) {
	a, v, err := l.ArrayVolume(pvc)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(a.Exports(), func(x array.VLUN) bool { return x.Volume != v.Name }), nil
}

// ExportByHand exports a claim's volume to a node at all ports, at the lowest
// LUN that is free. Where the array knows no host with the node's initiators
// one is made under the node's name, which the storage provider didn't make.
func (l *Lab) ExportByHand(pvc, node string) error {
	a, v, err := l.ArrayVolume(pvc)
	if err != nil {
		return err
	}
	b, err := l.onArrays()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(b.nodes, func(m machine) bool { return m.name == node })
	if i < 0 {
		return fmt.Errorf("no node %q", node)
	}
	b.naming.RLock()
	m := b.nodes[i]
	b.naming.RUnlock()
	return a.Change(func(now time.Time) ([]array.ContentOp, error) {
		name := ""
		for _, h := range a.Core().Hosts() {
			if b.nodeOf(h) == node {
				name = h.Name
			}
		}
		if name == "" {
			spec := array.HostSpec{Name: node, FCWWNs: m.adapters.WWPNs}
			if m.adapters.IQN != "" {
				spec.ISCSINames = []string{m.adapters.IQN}
			}
			if _, err := a.Core().CreateHost(now, spec); err != nil {
				return nil, err
			}
			name = node
		}
		_, err := a.Core().CreateVLUN(now, array.VLUNSpec{Volume: v.Name, Host: name, Auto: true})
		return nil, err
	})
}

// EndExport ends all exports of a claim's volume to a node, and drops the
// node's host where it has no other.
func (l *Lab) EndExport(pvc, node string) error {
	a, v, err := l.ArrayVolume(pvc)
	if err != nil {
		return err
	}
	b, err := l.onArrays()
	if err != nil {
		return err
	}
	err = errors.New("it has no host on the array")
	for _, h := range a.Hosts() {
		if b.nodeOf(h) != node {
			continue
		}
		if err = a.RemoveVLUN(v.Name, h.Name); err != nil {
			return err
		}
		err = a.Change(func(now time.Time) ([]array.ContentOp, error) {
			if len(a.Core().VLUNsTo(h.Name)) > 0 {
				return nil, nil
			}
			return nil, a.Core().DeleteHost(now, h.Name)
		})
	}
	return err
}

// RenameArrayHost gives the host that stands for a node another name on the
// first array; exports stay. The storage provider's note on it stays with it
// unless unmarked.
func (l *Lab) RenameArrayHost(node, name string, unmarked bool) error {
	h, ok := l.ArrayHost(node)
	if !ok {
		return fmt.Errorf("the array has no host for %s", node)
	}
	a := l.SAN().Arrays()[0]
	ch := array.HostChange{NewName: &name}
	if unmarked {
		d := h.Descriptors
		d.Comment = ""
		ch.Descriptors = &d
	}
	return a.Change(func(now time.Time) ([]array.ContentOp, error) {
		_, err := a.Core().ModifyHost(now, h.Name, ch)
		return nil, err
	})
}

// ArraySnapshots are the virtual volumes of all arrays that are snapshots of a
// claim's volume, whoever made them.
func (l *Lab) ArraySnapshots(pvc string) (names []string, err error) {
	a, v, err := l.ArrayVolume(pvc)
	if err != nil {
		return nil, err
	}
	for _, s := range append(a.Volumes(), a.Snapshots()...) {
		if s.CopyOf == v.Name && s.CopyType == array.Virtual {
			names = append(names, s.Name)
		}
	}
	return names, nil
}
