package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/san"
)

// SAN is the lab's arrays and the network from them to the nodes; nil on another
// backend.
func (l *Lab) SAN() *san.SAN {
	if b, ok := l.backend.(*hpe); ok {
		return b.san
	}
	return nil
}

// onArrays is the backend, where it is arrays.
func (l *Lab) onArrays() (*hpe, error) {
	if b, ok := l.backend.(*hpe); ok {
		return b, nil
	}
	return nil, fmt.Errorf("the backend %s has no arrays", l.opts.Backend)
}

// SetCopyRate changes how fast the arrays copy content, in MiB per second: what
// is being copied may be done at once.
func (l *Lab) SetCopyRate(mibs int64) {
	for _, a := range l.SAN().Arrays() {
		a.Look(func(core *array.Array) { core.SetCopyRate(mibs) })
	}
}

// Exported is a volume at a LUN of a node.
type Exported struct {
	VolumeID, Array string
	LUN             int
}

// LUNs are what the arrays export to a node, each volume once for an array.
func (l *Lab) LUNs(node string) (out []Exported) {
	b, err := l.onArrays()
	if err != nil {
		return nil
	}
	for _, a := range b.san.Arrays() {
		a.Look(func(core *array.Array) {
			for _, h := range core.Hosts() {
				if b.nodeOf(h) != node {
					continue
				}
				for _, x := range core.VLUNsTo(h.Name) {
					v, err := core.Volume(x.Volume)
					if err != nil {
						continue
					}
					e := Exported{Array: a.Name(), LUN: x.LUN}
					e.VolumeID, _ = b.known(v)
					if !slices.Contains(out, e) {
						out = append(out, e)
					}
				}
			}
		})
	}
	return out
}

// Disown makes a claim's volume one that only the array knows: claim and
// PersistentVolume go, the volume gets a name of an administrator's and loses
// what the storage provider noted on it. The pods that use it must be gone.
func (l *Lab) Disown(ctx context.Context, pvc, name string) error {
	b, err := l.onArrays()
	if err != nil {
		return err
	}
	pv, err := store.Modify(ctx, l.user, "", l.PVName(pvc), func(pv *corev1.PersistentVolume) error {
		pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		return nil
	})
	if err != nil {
		return err
	}
	id := pv.Spec.CSI.VolumeHandle
	if err := l.DeletePVC(ctx, pvc); err != nil {
		return err
	}
	if err := l.Delete(ctx, pv); err != nil {
		return err
	}
	a, v, err := b.find(id)
	if err != nil {
		return err
	}
	return a.Change(func(now time.Time) ([]array.ContentOp, error) {
		none := ""
		_, err := a.Core().ModifyVolume(now, v.Name, array.VolumeChange{NewName: &name, Comment: &none})
		return nil, err
	})
}

// ArrayHost is the host that stands for a node on the first array, with its
// CHAP name, or false.
func (l *Lab) ArrayHost(node string) (array.Host, bool) {
	b, err := l.onArrays()
	if err != nil {
		return array.Host{}, false
	}
	hosts := b.san.Arrays()[0].Hosts()
	i := slices.IndexFunc(hosts, func(h array.Host) bool { return b.nodeOf(h) == node })
	if i < 0 {
		return array.Host{}, false
	}
	return hosts[i], true
}

// Expects sets what a claim's volume must hold from now on, by file: for a
// volume whose content came otherwise than by a pod's writes or a snapshot.
func (l *Lab) Expects(pvc string, files map[string]string) {
	have := l.data.expected(l, l.VolumeID(pvc))
	l.data.mu.Lock()
	defer l.data.mu.Unlock()
	for name, content := range files {
		have[strings.TrimPrefix(name, "/")] = []byte(content)
	}
}

// FailBack waits until the groups that an array holds in the wrong direction are
// up to date, and gives them their natural one again.
func (l *Lab) FailBack(ctx context.Context, name string) error {
	b, err := l.onArrays()
	if err != nil {
		return err
	}
	if _, ok := b.san.Array(name); !ok {
		return fmt.Errorf("no array %q", name)
	}
	return l.poll(ctx, "the groups of "+name+" have their natural direction", func() (string, bool) {
		err := b.san.FailBack(name)
		return fmt.Sprint(err), err == nil
	})
}

// InSync waits until the secondaries of an array's groups have all that was
// written, and starts groups that have stopped, as an administrator does after an
// outage that no failover followed. Only then does the other array take over when
// this one is lost.
func (l *Lab) InSync(ctx context.Context, name string) error {
	b, err := l.onArrays()
	if err != nil {
		return err
	}
	a, ok := b.san.Array(name)
	if !ok {
		return fmt.Errorf("no array %q", name)
	}
	return l.poll(ctx, "the groups of "+name+" are synced", func() (string, bool) {
		if err := b.san.StartGroups(name); err != nil {
			return err.Error(), false
		}
		for _, g := range a.Groups() {
			for _, v := range g.Volumes {
				if g.Role == array.Primary && v.State != array.Synced {
					return fmt.Sprintf("volume %s of group %s is %v", v.Volume, g.Name, v.State), false
				}
			}
		}
		return "", true
	})
}

// Until waits until something is so.
func (l *Lab) Until(ctx context.Context, what string, f func() bool) error {
	return l.poll(ctx, what, func() (string, bool) { return "it is not so", f() })
}
