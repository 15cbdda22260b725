package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/vmware/govmomi/cns"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/kube/store"
)

// What others do behind the driver's back. Volumes and snapshots are named by
// their CSI ids. A verb that a backend has no like of returns a SkipError.

// onVSphere is the backend, where it is vCenters.
func (l *Lab) onVSphere(what string) (*vsphere, error) {
	if b, ok := l.backend.(*vsphere); ok {
		return b, nil
	}
	return nil, Skip("%s: the backend %s has no like of it", what, l.opts.Backend)
}

func (l *Lab) onHPE(what string) (*hpe, error) {
	if b, ok := l.backend.(*hpe); ok {
		return b, nil
	}
	return nil, Skip("%s: the backend %s has no like of it", what, l.opts.Backend)
}

// LoseVolume deletes a volume with its content, snapshots and exports, whatever
// uses it. On vSphere its disk goes, out of its VM first: CNS has it on record
// still.
func (l *Lab) LoseVolume(ctx context.Context, id string) error {
	return l.backend.loseVolume(ctx, id)
}

func (b *vsphere) loseVolume(ctx context.Context, id string) error {
	s := b.siteOf(id)
	if s == nil {
		return fmt.Errorf("no vCenter has volume %s", id)
	}
	for _, x := range b.exports() {
		if n := b.l.node(x.Node); x.VolumeID == id && n != nil {
			if err := b.pullDisk(ctx, n, id); err != nil {
				return err
			}
		}
	}
	return s.LoseDisk(id)
}

func (b *hpe) loseVolume(_ context.Context, id string) error {
	a, v, err := b.find(id)
	if err != nil {
		return err
	}
	return a.DeleteWithCopies(v.Name)
}

// UnregisterVolume takes a volume off CNS's records; its disk stays, as an
// orphan of nobody's.
func (l *Lab) UnregisterVolume(ctx context.Context, id string) error {
	b, err := l.onVSphere("to unregister a volume")
	if err != nil {
		return err
	}
	s := b.siteOf(id)
	if s == nil {
		return fmt.Errorf("no vCenter has volume %s", id)
	}
	_, err = b.admin(ctx, s.VCenter, func(ctx context.Context, c *cns.Client) (*object.Task, error) {
		return c.DeleteVolume(ctx, []cnstypes.CnsVolumeId{{Id: id}}, false)
	})
	return err
}

// RenameVolume gives a virtual volume of an array another name, up to 31
// characters.
func (l *Lab) RenameVolume(id, name string) error {
	b, err := l.onHPE("to rename a volume")
	if err != nil {
		return err
	}
	a, v, err := b.find(id)
	if err != nil {
		return err
	}
	return a.Change(func(now time.Time) ([]array.ContentOp, error) {
		_, err := a.Core().ModifyVolume(now, v.Name, array.VolumeChange{NewName: &name})
		return nil, err
	})
}

// LoseSnapshot deletes a snapshot on the backend.
func (l *Lab) LoseSnapshot(ctx context.Context, id string) error {
	if b, ok := l.backend.(*hpe); ok {
		a, v, err := b.find(id)
		if err != nil {
			return err
		}
		return a.DeleteVolume(v.Name)
	}
	b, err := l.onVSphere("to delete a snapshot")
	if err != nil {
		return err
	}
	volume, snapshot, ok := strings.Cut(id, "+")
	s := b.siteOf(volume)
	if !ok || s == nil {
		return fmt.Errorf("no vCenter has snapshot %s", id)
	}
	_, err = b.admin(ctx, s.VCenter, func(ctx context.Context, c *cns.Client) (*object.Task, error) {
		return c.DeleteSnapshots(ctx, []cnstypes.CnsSnapshotDeleteSpec{{VolumeId: cnstypes.CnsVolumeId{Id: volume}, SnapshotId: cnstypes.CnsSnapshotId{Id: snapshot}}})
	})
	return err
}

// SnapshotByHand takes a snapshot of a volume that no VolumeSnapshot knows.
func (l *Lab) SnapshotByHand(ctx context.Context, volume, name string) error {
	if b, ok := l.backend.(*hpe); ok {
		a, v, err := b.find(volume)
		if err != nil {
			return err
		}
		return a.Change(func(now time.Time) ([]array.ContentOp, error) {
			spec := array.CopySpec{Of: v.Name, Name: name, ReadOnly: true}
			p, err := a.Core().PlanCreateCopy(spec)
			if err == nil {
				_, err = a.Core().CreateCopy(now, spec)
			}
			if err != nil {
				return nil, err
			}
			return p.Ops, nil
		})
	}
	b, err := l.onVSphere("to take a snapshot")
	if err != nil {
		return err
	}
	s := b.siteOf(volume)
	if s == nil {
		return fmt.Errorf("no vCenter has volume %s", volume)
	}
	_, err = b.admin(ctx, s.VCenter, func(ctx context.Context, c *cns.Client) (*object.Task, error) {
		return c.CreateSnapshots(ctx, []cnstypes.CnsSnapshotCreateSpec{{VolumeId: cnstypes.CnsVolumeId{Id: volume}, Description: name}})
	})
	return err
}

// PullVolume takes a volume from a node by hand: its disk out of the VM, or
// its VLUN off the array.
func (l *Lab) PullVolume(ctx context.Context, volume, node string) error {
	n := l.node(node)
	if n == nil {
		return l.noNode(node)
	}
	return l.backend.pullDisk(ctx, n, volume)
}

// AttachByHand asks the vCenter to attach a volume to a node's VM, as an
// administrator does who has seen no VolumeAttachment.
func (l *Lab) AttachByHand(ctx context.Context, volume, node string) error {
	b, err := l.onVSphere("to attach a disk by hand")
	if err != nil {
		return err
	}
	s := b.siteOf(volume)
	if s == nil {
		return fmt.Errorf("no vCenter has volume %s", volume)
	}
	if l.node(node) == nil {
		return l.noNode(node)
	}
	return b.asAdmin(ctx, s.VCenter, func(ctx context.Context, vc *vim25.Client) error {
		vm, err := object.NewSearchIndex(vc).FindByUuid(ctx, nil, s.VCenter.VMUUID(node), true, nil)
		if err != nil {
			return err
		}
		c, err := cns.NewClient(ctx, vc)
		if err != nil {
			return err
		}
		task, err := c.AttachVolume(ctx, []cnstypes.CnsVolumeAttachDetachSpec{{VolumeId: cnstypes.CnsVolumeId{Id: volume}, Vm: vm.Reference()}})
		if err != nil {
			return err
		}
		_, err = resultOf(ctx, task)
		return err
	})
}

// RenumberLUN gives a volume's export to a node another LUN, one that is free.
func (l *Lab) RenumberLUN(volume, node string) error {
	b, err := l.onHPE("to renumber a LUN")
	if err != nil {
		return err
	}
	n := l.node(node)
	if n == nil {
		return l.noNode(node)
	}
	a, x, err := b.exported(n, volume)
	if err != nil {
		return err
	}
	free := x.LUN
	for _, e := range a.Exports() {
		free = max(free, e.LUN+1)
	}
	return a.RenumberLUN(x.Volume, x.Host, free)
}

// RemoveHostEntry deletes the host that stands for a node on each array, with
// its exports.
func (l *Lab) RemoveHostEntry(node string) error {
	b, err := l.onHPE("to remove a host entry")
	if err != nil {
		return err
	}
	if l.node(node) == nil {
		return l.noNode(node)
	}
	found := false
	for _, a := range b.san.Arrays() {
		for _, h := range a.Hosts() {
			if b.nodeOf(h) != node {
				continue
			}
			found = true
			if err := a.RemoveHost(h.Name); err != nil {
				return err
			}
		}
	}
	if !found {
		return fmt.Errorf("no array has a host for node %s", node)
	}
	return nil
}

// FillStorage lets others take so much of the storage that freeBytes are left
// for new volumes in each CPG or datastore. heal gives it back.
func (l *Lab) FillStorage(freeBytes int64) (heal func(), err error) {
	if freeBytes < 0 {
		return nil, fmt.Errorf("free space %d bytes: allowed are 0 and more", freeBytes)
	}
	var undo []func() error
	heal = func() {
		for _, f := range undo {
			if err := f(); err != nil {
				l.log.Debug("give space back", "err", err)
			}
		}
	}
	if b, ok := l.backend.(*hpe); ok {
		for _, a := range b.san.Arrays() {
			for _, c := range a.CPGs() {
				undo = append(undo, func() error { return a.FillCPG(c.Name, -1) })
				if err := a.FillCPG(c.Name, freeBytes>>20); err != nil {
					heal()
					return nil, err
				}
			}
		}
		return heal, nil
	}
	b, err := l.onVSphere("to fill the storage")
	if err != nil {
		return nil, err
	}
	for _, s := range b.sites {
		for _, d := range s.DatastoreList() {
			undo = append(undo, func() error { return s.FillDatastore(d.Name, d.CapacityBytes) })
			if err := s.FillDatastore(d.Name, freeBytes); err != nil {
				heal()
				return nil, err
			}
		}
	}
	return heal, nil
}

// datastores does something with a datastore of any vCenter, or with name ""
// with all.
func (l *Lab) datastores(what, name string, do func(site, string) error) error {
	b, err := l.onVSphere(what)
	if err != nil {
		return err
	}
	var names []string
	found := false
	for _, s := range b.sites {
		for _, d := range s.DatastoreNames() {
			names = append(names, d)
			if name != "" && name != d {
				continue
			}
			found = true
			if err := do(s, d); err != nil {
				return err
			}
		}
	}
	if !found {
		return fmt.Errorf("datastore %q: there is none; allowed are %s", name, strings.Join(names, ", "))
	}
	return nil
}

// MaintainDatastore puts a datastore into maintenance mode; with name "" all.
func (l *Lab) MaintainDatastore(name string) (heal func(), err error) {
	set := func(on bool) error {
		return l.datastores("maintenance of a datastore", name, func(s site, d string) error { return s.DatastoreMaintenance(d, on) })
	}
	return l.undoable(set)
}

// SuspendDatastore lets CNS place nothing on a datastore; with name "" on none.
func (l *Lab) SuspendDatastore(name string) (heal func(), err error) {
	set := func(on bool) error {
		return l.datastores("suspension of a datastore", name, func(s site, d string) error { return s.SuspendDatastore(d, on) })
	}
	return l.undoable(set)
}

// undoable does something that can be undone.
func (l *Lab) undoable(set func(on bool) error) (heal func(), err error) {
	var once sync.Once
	heal = func() {
		once.Do(func() {
			if err := set(false); err != nil {
				l.log.Debug("heal", "err", err)
			}
		})
	}
	if err := set(true); err != nil {
		heal()
		return nil, err
	}
	return heal, nil
}

// MoveVM migrates a node's VM to another host of its cluster.
func (l *Lab) MoveVM(node string) error {
	b, err := l.onVSphere("to move a VM")
	if err != nil {
		return err
	}
	vc := b.placed[node]
	if vc == nil {
		return l.noNode(node)
	}
	at := vc.HostOf(node)
	var errs []error
	for _, h := range vc.Hosts() {
		if h == at {
			continue
		}
		err := vc.MoveVM(node, h)
		if err == nil {
			return nil
		}
		errs = append(errs, err) // another cluster's, say
	}
	return errors.Join(append(errs, fmt.Errorf("VM of %s: no other host takes it", node))...)
}

// SnapshotVM takes a snapshot of a node's VM, which pins its volumes; heal
// removes it.
func (l *Lab) SnapshotVM(node string) (heal func(), err error) {
	b, err := l.onVSphere("a snapshot of a VM")
	if err != nil {
		return nil, err
	}
	vc := b.placed[node]
	if vc == nil {
		return nil, l.noNode(node)
	}
	return l.undoable(func(on bool) error {
		if on {
			return vc.SnapshotVM(node, "by hand")
		}
		return vc.RemoveVMSnapshots(node)
	})
}

// LockAccount locks the driver's account at the backend: it can't log in any
// more, sessions stay.
func (l *Lab) LockAccount() (heal func(), err error) {
	b, err := l.onVSphere("to lock an account")
	if err != nil {
		return nil, err
	}
	return l.undoable(func(on bool) error {
		for _, s := range b.sites {
			user := s.URL().User.Username()
			do := s.UnlockAccount
			if on {
				do = s.LockAccount
			}
			if err := do(user); err != nil {
				return err
			}
		}
		return nil
	})
}

// PurgeTasks takes all tasks out of the vCenters' memory, those that run too:
// whoever asks for one is told that there is none.
func (l *Lab) PurgeTasks() error {
	b, err := l.onVSphere("to purge tasks")
	if err != nil {
		return err
	}
	for _, s := range b.sites {
		var ids []string
		for _, t := range s.Tasks() {
			ids = append(ids, t.Task)
		}
		if len(ids) > 0 {
			s.PurgeTasks(ids...)
		}
	}
	return nil
}

// ReplaceCertificates gives all vCenters new certificates. The driver trusts
// the old ones until Redeploy. A lab's arrays and their provider serve without
// TLS, and their clients verify nothing.
func (l *Lab) ReplaceCertificates() error {
	b, err := l.onVSphere("to change a certificate")
	if err != nil {
		return err
	}
	if l.opts.Bubble {
		return Skip("to change a certificate: a vCenter in a bubble serves without TLS")
	}
	for _, s := range b.sites {
		if err := s.ReplaceCertificate(); err != nil {
			return err
		}
	}
	return nil
}

// ResolveVolume finds the id of the volume that a call is about: the id
// itself, its claim (namespace/name), its PersistentVolume, the name that its
// backend knows it by, or the id that begins a snapshot's.
func (l *Lab) ResolveVolume(subject string) (id string, ok bool) {
	if subject == "" {
		return "", false
	}
	if l.OnBackend(subject) {
		return subject, true
	}
	if pv, err := l.Volume(subject); err == nil && pv.Spec.CSI != nil {
		return pv.Spec.CSI.VolumeHandle, true
	}
	if id := l.VolumeID(subject); id != "" {
		return id, true
	}
	if b, ok := l.backend.(*hpe); ok {
		for _, a := range b.san.Arrays() {
			if i := slices.IndexFunc(append(a.Volumes(), a.Snapshots()...), func(v array.Volume) bool { return v.Name == subject }); i >= 0 {
				id, _ := b.known(append(a.Volumes(), a.Snapshots()...)[i])
				return id, true
			}
		}
	}
	for _, v := range l.backend.volumes() {
		if v.name == subject {
			return v.id, true
		}
	}
	return "", false
}

// ResolveNode finds the node that a call is about: by its name, its id in CSI,
// or the component that runs there.
func (l *Lab) ResolveNode(subject string) (name string, ok bool) {
	if l.node(subject) != nil {
		return subject, true
	}
	if n := l.nodeByID(subject); n != nil {
		return n.Name, true
	}
	if _, node, found := strings.Cut(subject, "@"); found && l.node(node) != nil {
		return node, true
	}
	return "", false
}

// SnapshotHandle is the CSI id of a VolumeSnapshot's snapshot; "" when it has none.
func (l *Lab) SnapshotHandle(name string) string {
	ns, n := split(name)
	s, err := store.Get[snapshotv1.VolumeSnapshot](l.user, ns, n)
	if err != nil {
		return ""
	}
	return l.snapshotID(s)
}

// SnapshotsOf are the ids of all snapshots that the backend has of a volume, by
// whoever they were taken.
func (l *Lab) SnapshotsOf(volume string) (ids []string) {
	for _, s := range l.backend.snapshots() {
		if s.volume == volume {
			ids = append(ids, s.id)
		}
	}
	if b, ok := l.backend.(*hpe); ok {
		a, v, err := b.find(volume)
		if err != nil {
			return ids
		}
		for _, s := range a.Snapshots() {
			if id, _ := b.known(s); s.CopyOf == v.Name && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	return ids
}
