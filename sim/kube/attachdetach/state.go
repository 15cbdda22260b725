package attachdetach

import (
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/csilab/csilab/sim/kube/store"
)

// volume is what is known about one volume beyond the API: the actual state of
// the world (cache/actual_state_of_world.go) and its operations.
type volume struct {
	name, driver, handle string
	nodes                map[string]*attachment
	// ops is the newest operation by node; "" for a volume that at most one node
	// may have, whose operations exclude each other.
	ops map[string]*operation
	// multiAttach holds the nodes whose pods were told that they must wait.
	multiAttach map[string]bool
}

type attachment struct {
	// confirmed: an attach succeeded. Otherwise the volume may or may not be there.
	confirmed bool
	// detachSince is when no pod needed it any more; zero while one does.
	detachSince time.Time
	// driftSince is when its VolumeAttachment was first seen to contradict.
	driftSince time.Time
	// assumed is the version of the node when the attachment was noted: while
	// the node still has it, the volume counts as mounted (AddVolumeNode in
	// actual_state_of_world.go). "" for no node.
	assumed string
}

type opKind string

const (
	attach opKind = "attach"
	detach opKind = "detach"
)

type operation struct {
	kind     opKind
	node     string
	pending  bool
	deadline time.Time     // of a pending one
	wait     time.Duration // of a failed one: the back-off …
	until    time.Time     // … and its end
}

// fail notes a failed try.
func (o *operation) fail(now time.Time, t Timers) {
	o.pending = false
	if o.wait == 0 {
		o.wait = t.BackoffMin
	} else {
		o.wait = min(2*o.wait, t.BackoffMax)
	}
	o.until = now.Add(o.wait)
}

func (a *Controller) volume(name string) *volume {
	a.mu.Lock()
	defer a.mu.Unlock()
	v := a.volumes[name]
	if v == nil {
		driver, handle := splitKey(name)
		v = &volume{name: name, driver: driver, handle: handle, nodes: map[string]*attachment{}, ops: map[string]*operation{}, multiAttach: map[string]bool{}}
		a.volumes[name] = v
	}
	return v
}

// attachment returns the attachment of a volume to a node, noted now if it is new.
func (a *Controller) attachment(v *volume, node string) *attachment {
	assumed := ""
	if n, err := store.Get[corev1.Node](a.c, "", node); err == nil {
		assumed = n.ResourceVersion
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	at := v.nodes[node]
	if at == nil {
		at = &attachment{assumed: assumed}
		v.nodes[node] = at
		put(a.onNode, node, v.name)
		a.byVA[AttachmentName(v.handle, v.driver, node)] = v.name
	}
	return at
}

// forget takes an attachment out.
func (a *Controller) forget(v *volume, node string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(v.nodes, node)
	delete(a.byVA, AttachmentName(v.handle, v.driver, node))
	drop(a.onNode, node, v.name)
	drop(a.reported, node, v.name)
	a.dirty[node] = true
}

// tidy forgets a volume of which nothing is left to remember.
func (a *Controller) tidy(v *volume) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(v.nodes) == 0 && len(v.ops) == 0 && len(v.multiAttach) == 0 {
		delete(a.volumes, v.name)
	}
}

func (a *Controller) report(node, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	put(a.reported, node, name)
	a.dirty[node] = true
}

func (a *Controller) unreport(node, name string) (was bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, was = a.reported[node][name]
	drop(a.reported, node, name)
	a.dirty[node] = true
	return was
}

// writeNode makes a node's status list the volumes that are attached to it
// (statusupdater/node_status_updater.go). A node that is gone needs none.
func (a *Controller) writeNode(ctx context.Context, node string) error {
	list := func() []corev1.AttachedVolume {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.dirty, node) // a change from here on makes it dirty again
		var out []corev1.AttachedVolume
		for name := range a.reported[node] {
			out = append(out, corev1.AttachedVolume{Name: corev1.UniqueVolumeName(name)})
		}
		slices.SortFunc(out, func(x, y corev1.AttachedVolume) int {
			if x.Name < y.Name {
				return -1
			}
			return 1
		})
		return out
	}
	n, err := store.Get[corev1.Node](a.c, "", node)
	if err == nil && !equality.Semantic.DeepEqual(n.Status.VolumesAttached, list()) {
		_, err = store.ModifyStatus(ctx, a.c, "", node, func(n *corev1.Node) error {
			n.Status.VolumesAttached = list()
			return nil
		})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		a.mu.Lock()
		a.dirty[node] = true
		a.mu.Unlock()
	}
	return err
}

// writeDirty repeats the writes of nodes' status that failed.
func (a *Controller) writeDirty(ctx context.Context) error {
	a.mu.Lock()
	nodes := slices.Sorted(maps.Keys(a.dirty))
	a.mu.Unlock()
	for _, n := range nodes {
		if err := a.writeNode(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

func put(m map[string]map[string]struct{}, k, v string) {
	if m[k] == nil {
		m[k] = map[string]struct{}{}
	}
	m[k][v] = struct{}{}
}

func drop(m map[string]map[string]struct{}, k, v string) {
	delete(m[k], v)
	if len(m[k]) == 0 {
		delete(m, k)
	}
}
