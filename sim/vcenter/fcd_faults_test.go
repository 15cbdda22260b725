package vcenter_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/vcenter"
)

// breaking is a store of images whose next call of a kind fails.
type breaking struct {
	disk.Store
	mu   sync.Mutex
	next string
}

var errBroken = errors.New("I/O error")

func (b *breaking) fail(call string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next = call
}

func (b *breaking) broken(call string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next != call {
		return nil
	}
	b.next = ""
	return errBroken
}

func (b *breaking) Create(id string, size int64) error {
	if err := b.broken("create"); err != nil {
		return err
	}
	return b.Store.Create(id, size)
}

func (b *breaking) Delete(id string) error {
	if err := b.broken("delete"); err != nil {
		return err
	}
	return b.Store.Delete(id)
}

func (b *breaking) Grow(id string, size int64) error {
	if err := b.broken("grow"); err != nil {
		return err
	}
	return b.Store.Grow(id, size)
}

func (b *breaking) Snapshot(id, snap string) error {
	if err := b.broken("snapshot"); err != nil {
		return err
	}
	return b.Store.Snapshot(id, snap)
}

func (b *breaking) DeleteSnapshot(id, snap string) error {
	if err := b.broken("delete snapshot"); err != nil {
		return err
	}
	return b.Store.DeleteSnapshot(id, snap)
}

func (b *breaking) Restore(id, snap, newID string, size int64) error {
	if err := b.broken("restore"); err != nil {
		return err
	}
	return b.Store.Restore(id, snap, newID, size)
}

func (b *breaking) Clone(id, newID string, size int64) error {
	if err := b.broken("clone"); err != nil {
		return err
	}
	return b.Store.Clone(id, newID, size)
}

func (b *breaking) Revert(id, snap string) error {
	if err := b.broken("revert"); err != nil {
		return err
	}
	return b.Store.Revert(id, snap)
}

// TestFCDUndo: what the content refuses has not happened, and happens when it
// is tried again.
func TestFCDUndo(t *testing.T) {
	t.Parallel()
	store := &breaking{Store: disk.NewMemory()}
	defer store.Close()
	f := newFCDs(t, vcenter.Config{Disks: store})
	f.store = store
	ctx, m, backing := f.ctx, f.global, f.spec("", 0, 0).BackingSpec
	id := types.ID{Id: f.fcd("one")}
	first := f.must(f.ended(m.CreateSnapshot(ctx, id, "first"))).(types.ID)
	second := f.must(f.ended(m.CreateSnapshot(ctx, id, "second"))).(types.ID)
	free := types.ID{Id: f.fcd("two")}
	for _, x := range []struct {
		call string
		do   func() (types.AnyType, error)
	}{
		{"create", func() (types.AnyType, error) { return f.ended(m.CreateDisk(ctx, f.spec("new", 16, 0))) }},
		{"clone", func() (types.AnyType, error) {
			return f.ended(m.Clone(ctx, free, types.VslmCloneSpec{Name: "copy", VslmMigrateSpec: types.VslmMigrateSpec{BackingSpec: backing}}))
		}},
		{"restore", func() (types.AnyType, error) {
			return f.ended(m.CreateDiskFromSnapshot(ctx, id, first, "restored", nil, nil, ""))
		}},
		{"snapshot", func() (types.AnyType, error) { return f.ended(m.CreateSnapshot(ctx, free, "s")) }},
		{"revert", func() (types.AnyType, error) { return f.ended(m.Revert(ctx, id, second)) }},
		{"delete snapshot", func() (types.AnyType, error) { return f.ended(m.DeleteSnapshot(ctx, id, second)) }},
	} {
		before := f.describe()
		store.fail(x.call)
		_, err := x.do()
		f.refused(&types.SystemError{}, nil, err)
		if after := f.describe(); after != before {
			t.Errorf("%s failed, but it is\n%s\nand was\n%s", x.call, after, before)
		}
		if _, err := x.do(); err != nil {
			t.Errorf("%s again: %v", x.call, err)
		}
	}
	other := types.ID{Id: f.fcd("three")}
	for _, x := range []struct {
		call string
		do   func() (types.AnyType, error)
	}{
		{"grow", func() (types.AnyType, error) { return f.ended(m.ExtendDisk(ctx, other, 32)) }},
		{"delete", func() (types.AnyType, error) { return f.ended(m.Delete(ctx, other)) }},
	} {
		before := f.describe()
		store.fail(x.call)
		_, err := x.do()
		f.refused(&types.SystemError{}, nil, err)
		if after := f.describe(); after != before {
			t.Errorf("%s failed, but it is\n%s\nand was\n%s", x.call, after, before)
		}
		if _, err := x.do(); err != nil {
			t.Errorf("%s again: %v", x.call, err)
		}
	}
}

// describe tells all disks, their images and what is free.
func (f *fcds) describe() string {
	f.t.Helper()
	all, err := f.global.List(f.ctx)
	if err != nil {
		f.t.Fatal(err)
	}
	s := ""
	for _, r := range all.QueryResults {
		r.UsedCapacityInMB = 0
		s += fmt.Sprintf("%s %s %d %d\n", r.Id.Id, r.Name, r.CapacityInMB, len(r.SnapshotInfo))
	}
	for _, i := range f.store.List() {
		s += fmt.Sprintf("%+v\n", i)
	}
	var ds []mo.Datastore
	if err := property.DefaultCollector(f.Client.Client).Retrieve(f.ctx, []types.ManagedObjectReference{f.ds[0].Reference(), f.ds[1].Reference()}, []string{"summary"}, &ds); err != nil {
		f.t.Fatal(err)
	}
	for _, d := range ds {
		s += fmt.Sprintf("%s %d %d\n", d.Summary.Name, d.Summary.FreeSpace, d.Summary.Uncommitted)
	}
	return s
}

// TestFCDFaultsAndLedger: calls and tasks of disks pass the interceptor like
// those of CNS: a rule fails one, and the ledger has both.
func TestFCDFaultsAndLedger(t *testing.T) {
	t.Parallel()
	in := &fault.Interceptor{Ledger: &ledger.Ledger{}, Plan: &fault.Plan{}, Classify: func(_ ledger.Hop, err error) string { return vcenter.CodeOf(err) }}
	t.Cleanup(in.Close)
	f := newFCDs(t, vcenter.Config{In: in})
	id := f.fcd("one")
	in.Plan.Arm(fault.Rule{Op: "task:VslmExtendDisk_Task", Nth: 1, Do: fault.Error(&vcenter.Fault{Fault: &types.TaskInProgress{}, Message: "busy"})})
	_, err := f.ended(f.global.ExtendDisk(f.ctx, types.ID{Id: id}, 32))
	f.refused(&types.TaskInProgress{}, nil, err)
	f.must(f.ended(f.global.ExtendDisk(f.ctx, types.ID{Id: id}, 32)))
	calls, tasks := entries(in, "VslmExtendDisk_Task"), entries(in, "task:VslmExtendDisk_Task")
	if len(calls) != 2 || calls[0].Volume != id || calls[0].Outcome != ledger.OK || len(tasks) != 2 || tasks[0].Volume != id || tasks[0].Outcome == ledger.OK || tasks[1].Outcome != ledger.OK || tasks[0].Cause != calls[0].Seq {
		t.Errorf("calls %+v\ntasks %+v", calls, tasks)
	}
	if c := entries(in, "VslmCreateDisk_Task"); len(c) != 1 || c[0].Volume != "one" || c[0].Request != "" {
		t.Errorf("create %+v", c)
	}
}
