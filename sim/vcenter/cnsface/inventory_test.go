package cnsface_test

import (
	"slices"
	"strings"
	"testing"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cnsface"
)

// TestVMDeleted: the volumes of a VM that is deleted stay, and are free.
func TestVMDeleted(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	id, other := l.create("a", 10), l.create("b", 10)
	l.ok(l.attach(id, l.vms[0]))
	l.ok(l.attach(other, l.vms[1]))
	l.destroy(0)
	if as := l.face.Attachments(); len(as) != 1 || as[0].Volume != other {
		t.Errorf("attachments %+v", as)
	}
	l.refused(objectGone, l.detach(id, l.vms[0]))
	poll(t, "the disk to be pulled out of the node", func() bool { return len(l.nodes.list()) == 1 })
	l.ok(l.attach(id, l.vms[1]))
	l.ok(l.detach(id, l.vms[1]))
	l.ok(l.delete(id))
}

func (l *lab) destroy(vm int) {
	l.t.Helper()
	for _, f := range []func() error{
		func() error {
			task, err := l.vms[vm].PowerOff(l.ctx)
			if err != nil {
				return err
			}
			return task.Wait(l.ctx)
		},
		func() error {
			task, err := l.vms[vm].Destroy(l.ctx)
			if err != nil {
				return err
			}
			return task.Wait(l.ctx)
		},
	} {
		if err := f(); err != nil {
			l.t.Fatal(err)
		}
	}
}

// TestVMUnregistered: it leaves the inventory with its disks still plugged in.
func TestVMUnregistered(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	id := l.create("a", 10)
	l.ok(l.attach(id, l.vms[0]))
	task, err := l.vms[0].PowerOff(l.ctx)
	if err == nil {
		err = task.Wait(l.ctx)
	}
	if err == nil {
		err = l.vms[0].Unregister(l.ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	if as := l.face.Attachments(); len(as) != 0 {
		t.Errorf("attachments %+v", as)
	}
	poll(t, "the disk to be pulled out of the node", func() bool { return len(l.nodes.list()) == 0 })
	l.ok(l.attach(id, l.vms[1]))
}

// TestHardwareIsTheTruth: a disk that is taken out of the VM, or put into it,
// by other means than CNS.
func TestHardwareIsTheTruth(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	id := l.create("a", 10)
	l.ok(l.attach(id, l.vms[0]))
	d := l.disksOf(l.vms[0])[id]
	if err := l.vms[0].RemoveDevice(l.ctx, true, d); err != nil {
		t.Fatal(err)
	}
	if as := l.face.Attachments(); len(as) != 0 {
		t.Fatalf("attachments %+v", as)
	}
	poll(t, "the disk to be pulled out of the node", func() bool { return len(l.nodes.list()) == 0 })
	l.ok(l.detach(id, l.vms[0])) // nobody holds it

	c := *l.model.Service.Context
	vm := c.Map.Get(l.vms[1].Reference()).(*simulator.VirtualMachine)
	c.WithLock(vm, func() {
		c.Update(vm, []vim.PropertyChange{{Name: "config.hardware.device", Val: append(slices.Clone(vm.Config.Hardware.Device), d)}})
	})
	if as := l.face.Attachments(); len(as) != 1 || as[0].VM != l.vms[1].Reference().Value {
		t.Fatalf("attachments %+v", as)
	}
	l.refused(inUse, l.attach(id, l.vms[0]))
}

// TestSuspended: a suspended VM neither takes nor gives disks.
func TestSuspended(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	id, other := l.create("a", 10), l.create("b", 10)
	l.ok(l.attach(id, l.vms[0]))
	task, err := l.vms[0].Suspend(l.ctx)
	if err == nil {
		err = task.Wait(l.ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	l.refused(taskState, l.detach(id, l.vms[0]))
	l.refused(taskState, l.attach(other, l.vms[0]))
}

// TestWatchers: who watches a VM or a datastore sees what CNS does to it.
func TestWatchers(t *testing.T) {
	t.Parallel()
	l := newLab(t, func(c *cnsface.Config) {
		c.Storage = func(string) cnsface.Storage { return cnsface.Storage{Thick: true} }
	})
	var ds mo.Datastore
	free := func() int64 {
		t.Helper()
		if err := l.vc.RetrieveOne(l.ctx, l.ds[0].Reference(), []string{"summary.freeSpace"}, &ds); err != nil {
			t.Fatal(err)
		}
		return ds.Summary.FreeSpace
	}
	before := free()
	id := l.create("a", 10)
	if got := before - free(); got != 10<<20 {
		t.Errorf("create took %d bytes of the datastore", got)
	}
	seen := make(chan bool, 1)
	go func() {
		err := property.Wait(l.ctx, property.DefaultCollector(l.vc.Client), l.vms[0].Reference(), []string{"config.hardware.device"}, func(cs []vim.PropertyChange) bool {
			for _, c := range cs {
				for _, d := range c.Val.(vim.ArrayOfVirtualDevice).VirtualDevice {
					if v, ok := d.(*vim.VirtualDisk); ok && v.VDiskId != nil && v.VDiskId.Id == id {
						return true
					}
				}
			}
			select {
			case seen <- false: // the state before
			default:
			}
			return false
		})
		seen <- err == nil
	}()
	if <-seen {
		t.Fatal("attached before it was")
	}
	l.ok(l.attach(id, l.vms[0]))
	if !<-seen {
		t.Error("the update of the hardware was not seen")
	}
	l.ok(l.detach(id, l.vms[0]))
	l.ok(l.extend(id, 30))
	if got := before - free(); got != 30<<20 {
		t.Errorf("after extend %d bytes are taken", got)
	}
	l.ok(l.delete(id))
	if free() != before {
		t.Error("delete gave back less than create took")
	}
}

// TestRestart: a face that starts from the state of another has the same
// volumes on the same VMs, and never a task id twice.
func TestRestart(t *testing.T) {
	t.Parallel()
	a := newLab(t)
	id, loose := a.create("a", 10), a.create("b", 10)
	r := a.ok(a.attach(id, a.vms[0])).(*cnstypes.CnsVolumeAttachResult)
	gone := a.create("c", 10)
	a.ok(a.attach(gone, a.vms[1]))
	state, next := a.face.State(), a.face.NextTask()
	vm1 := a.vms[1].Reference().Value
	for i := range state.Attachments {
		if state.Attachments[i].VM == vm1 {
			state.Attachments[i].VM = "vm-that-is-no-more"
		}
	}

	b := newLab(t, func(c *cnsface.Config) { c.State, c.FirstTask = state, next })
	if got := b.face.Volumes(); len(got) != 3 || got[0].ID != id || got[1].ID != loose {
		t.Fatalf("volumes %+v", got)
	}
	if d := b.disksOf(b.vms[0])[id]; d == nil || d.Backing.(*vim.VirtualDiskFlatVer2BackingInfo).Uuid != r.DiskUUID {
		t.Errorf("the VM shows %+v", d)
	}
	if as := b.face.Attachments(); len(as) != 1 || as[0].Volume != id || as[0].DiskUUID != r.DiskUUID {
		t.Errorf("attachments %+v", as)
	}
	// The same name again is another volume, though the count of names starts anew.
	task, err := b.cns.CreateVolume(b.ctx, []cnstypes.CnsVolumeCreateSpec{b.spec("a", 10)})
	if err != nil {
		t.Fatal(err)
	}
	if v := task.Reference().Value; v != "task-1000006" || next != 5 {
		t.Errorf("task %s after %d tasks", v, next)
	}
	if again := b.ok(b.wait(task, nil)).GetCnsVolumeOperationResult().VolumeId.Id; again == id {
		t.Error("an id was given twice")
	}

	state.Volumes[0].Datastore = "datastore-that-is-no-more"
	f, err := cnsface.New(cnsface.Config{State: state})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Install(cnsface.SmallModel(t, 1).Service); err == nil || !strings.Contains(err.Error(), "datastore-that-is-no-more") {
		t.Errorf("a state that doesn't fit: %v", err)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for field, c := range map[string]cnsface.Config{
		"FirstTask":     {FirstTask: -1},
		"KeepTasks":     {KeepTasks: -1},
		"SnapshotLimit": {SnapshotLimit: -1},
	} {
		if _, err := cnsface.New(c); err == nil || !strings.Contains(err.Error(), field+" is -1") {
			t.Errorf("%s: %v", field, err)
		}
	}
	f, err := cnsface.New(cnsface.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Install(nil); err == nil {
		t.Error("installed into nothing")
	}
}
