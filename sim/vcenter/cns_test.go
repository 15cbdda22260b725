package vcenter_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vmware/govmomi"
	"github.com/vmware/govmomi/cns"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter"
)

// client is what a driver has of a vCenter.
type client struct {
	*govmomi.Client
	cns *cns.Client
}

func cnsClient(ctx context.Context, c *govmomi.Client) (*client, error) {
	cc, err := cns.NewClient(ctx, c.Client)
	return &client{c, cc}, err
}

// result waits for a task and returns the result of its one volume.
func (c *client) result(ctx context.Context, task *object.Task, err error) (*cnstypes.CnsVolumeOperationResult, cnstypes.BaseCnsVolumeOperationResult, error) {
	if err != nil {
		return nil, nil, err
	}
	info, err := task.WaitForResultEx(ctx)
	if err != nil {
		return nil, nil, err
	}
	batch, ok := info.Result.(cnstypes.CnsVolumeOperationBatchResult)
	if !ok || len(batch.VolumeResults) != 1 {
		return nil, nil, fmt.Errorf("task result %#v", info.Result)
	}
	r := batch.VolumeResults[0].GetCnsVolumeOperationResult()
	if r.Fault != nil {
		return r, batch.VolumeResults[0], fmt.Errorf("%T: %s", r.Fault.Fault, r.Fault.LocalizedMessage)
	}
	return r, batch.VolumeResults[0], nil
}

func (c *client) create(ctx context.Context, name string) (string, error) {
	t, err := c.cns.CreateVolume(ctx, []cnstypes.CnsVolumeCreateSpec{volumeSpec(name)})
	r, _, err := c.result(ctx, t, err)
	if err != nil {
		return "", err
	}
	return r.VolumeId.Id, nil
}

func (c *client) attach(ctx context.Context, volume string, vm types.ManagedObjectReference) (string, error) {
	t, err := c.cns.AttachVolume(ctx, []cnstypes.CnsVolumeAttachDetachSpec{{VolumeId: cnstypes.CnsVolumeId{Id: volume}, Vm: vm}})
	_, b, err := c.result(ctx, t, err)
	if err != nil {
		return "", err
	}
	return b.(*cnstypes.CnsVolumeAttachResult).DiskUUID, nil
}

func (c *client) detach(ctx context.Context, volume string, vm types.ManagedObjectReference) error {
	t, err := c.cns.DetachVolume(ctx, []cnstypes.CnsVolumeAttachDetachSpec{{VolumeId: cnstypes.CnsVolumeId{Id: volume}, Vm: vm}})
	_, _, err = c.result(ctx, t, err)
	return err
}

func (c *client) delete(ctx context.Context, volume string) error {
	t, err := c.cns.DeleteVolume(ctx, []cnstypes.CnsVolumeId{{Id: volume}}, true)
	_, _, err = c.result(ctx, t, err)
	return err
}

func (c *client) vm(ctx context.Context, v *vcenter.VCenter, node string) (types.ManagedObjectReference, error) {
	r, err := object.NewSearchIndex(c.Client.Client).FindByUuid(ctx, nil, v.VMUUID(node), true, nil)
	if err != nil {
		return types.ManagedObjectReference{}, err
	}
	if r == nil {
		return types.ManagedObjectReference{}, fmt.Errorf("no VM for %s", node)
	}
	return r.Reference(), nil
}

// life creates, attaches, finds, detaches and deletes a volume.
func life(ctx context.Context, v *vcenter.VCenter, c *client) error {
	id, err := c.create(ctx, "pvc-1")
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	vm, err := c.vm(ctx, v, "node-1")
	if err != nil {
		return err
	}
	disk, err := c.attach(ctx, id, vm)
	if err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	disk = strings.ToLower(strings.ReplaceAll(disk, "-", ""))
	if b, err := hex.DecodeString(disk); err != nil || len(b) != 16 {
		return fmt.Errorf("disk uuid %q", disk)
	}
	var m mo.VirtualMachine
	if err := object.NewVirtualMachine(c.Client.Client, vm).Properties(ctx, vm, []string{"config.hardware"}, &m); err != nil {
		return err
	}
	found := false
	for _, d := range m.Config.Hardware.Device {
		if x, ok := d.(*types.VirtualDisk); ok && x.VDiskId != nil && x.VDiskId.Id == id {
			found = strings.ReplaceAll(x.Backing.(*types.VirtualDiskFlatVer2BackingInfo).Uuid, "-", "") == disk
		}
	}
	if !found {
		return fmt.Errorf("the VM's hardware does not show %s", id)
	}
	if ds := v.Disks()[v.VMUUID("node-1")]; len(ds) != 1 || ds[0].VolumeID != id || ds[0].DiskUUID != disk {
		return fmt.Errorf("Disks: %+v", ds)
	}
	if other, err := c.vm(ctx, v, "node-2"); err != nil {
		return err
	} else if _, err := c.attach(ctx, id, other); err == nil || !strings.Contains(err.Error(), "ResourceInUse") {
		return fmt.Errorf("attach to a second VM: %v", err)
	}
	q, err := c.cns.QueryVolume(ctx, &cnstypes.CnsQueryFilter{VolumeIds: []cnstypes.CnsVolumeId{{Id: id}}})
	if err != nil || len(q.Volumes) != 1 || q.Volumes[0].DatastoreUrl != v.DatastoreURL("datastore-1") && q.Volumes[0].DatastoreUrl != v.DatastoreURL("datastore-2") {
		return fmt.Errorf("query: %+v, %v", q, err)
	}
	if err := c.delete(ctx, id); err == nil {
		return fmt.Errorf("an attached volume was deleted")
	}
	if err := c.detach(ctx, id, vm); err != nil {
		return fmt.Errorf("detach: %w", err)
	}
	if err := c.delete(ctx, id); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	if vs := v.Volumes(); len(vs) != 0 {
		return fmt.Errorf("left over: %v", vs)
	}
	return nil
}

func TestLifeOfAVolume(t *testing.T) {
	v := start(t, vcenter.Config{TLS: true})
	c, err := cnsClient(t.Context(), login(t, v))
	if err != nil {
		t.Fatal(err)
	}
	if err := life(t.Context(), v, c); err != nil {
		t.Fatal(err)
	}
}

func TestDeletedVMLetsGo(t *testing.T) {
	v := start(t, vcenter.Config{})
	ctx := t.Context()
	c, err := cnsClient(ctx, login(t, v))
	if err != nil {
		t.Fatal(err)
	}
	id, err := c.create(ctx, "pvc-1")
	if err != nil {
		t.Fatal(err)
	}
	vm1, _ := c.vm(ctx, v, "node-1")
	vm2, _ := c.vm(ctx, v, "node-2")
	if _, err := c.attach(ctx, id, vm1); err != nil {
		t.Fatal(err)
	}
	if err := v.DeleteVM("node-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.vm(ctx, v, "node-1"); err == nil {
		t.Error("the VM is still found")
	}
	if err := c.detach(ctx, id, vm1); err == nil || !strings.Contains(err.Error(), "ManagedObjectNotFound") {
		t.Errorf("detach from a VM that is gone: %v", err)
	}
	if _, err := c.attach(ctx, id, vm2); err != nil {
		t.Errorf("attach elsewhere: %v", err)
	}
	if err := v.AddVM(vcenter.Node{Name: "node-1"}); err != nil {
		t.Fatal(err)
	}
	if again, err := c.vm(ctx, v, "node-1"); err != nil || again == vm1 {
		t.Errorf("VM again: %v, %v", again, err)
	}
	if err := v.PowerOff("node-2"); err != nil {
		t.Fatal(err)
	}
	if err := v.PowerOff("node-2"); err == nil || !strings.Contains(err.Error(), "InvalidPowerState") {
		t.Errorf("power off twice: %v", err)
	}
	o := object.NewVirtualMachine(c.Client.Client, vm2)
	if s, err := o.PowerState(ctx); err != nil || s != types.VirtualMachinePowerStatePoweredOff {
		t.Errorf("power state %v, %v", s, err)
	}
	task, err := o.PowerOn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := task.WaitEx(ctx); err != nil {
		t.Error(err)
	}
	if s, _ := o.PowerState(ctx); s != types.VirtualMachinePowerStatePoweredOn {
		t.Errorf("power state %v", s)
	}
}

func TestPulledDiskIsNotAttached(t *testing.T) {
	v := start(t, vcenter.Config{})
	ctx := t.Context()
	c, err := cnsClient(ctx, login(t, v))
	if err != nil {
		t.Fatal(err)
	}
	id, err := c.create(ctx, "pvc-1")
	if err != nil {
		t.Fatal(err)
	}
	vm1, _ := c.vm(ctx, v, "node-1")
	vm2, _ := c.vm(ctx, v, "node-2")
	if _, err := c.attach(ctx, id, vm1); err != nil {
		t.Fatal(err)
	}
	if err := v.PullDisk("node-1", id); err != nil {
		t.Fatal(err)
	}
	if err := v.PullDisk("node-1", id); err == nil {
		t.Error("pulled twice")
	}
	if ds := v.Disks()[v.VMUUID("node-1")]; len(ds) != 0 {
		t.Errorf("disks %+v", ds)
	}
	// Not attached anywhere: detach passes, and another VM may have it.
	if err := c.detach(ctx, id, vm1); err != nil {
		t.Errorf("detach: %v", err)
	}
	if _, err := c.attach(ctx, id, vm2); err != nil {
		t.Errorf("attach elsewhere: %v", err)
	}
}

// TestRestart starts a lab again from what it kept.
func TestRestart(t *testing.T) {
	cfg := vcenter.Config{Seed: 3, TLS: true, StateDir: t.TempDir(), Nodes: []vcenter.Node{{Name: "node-1"}, {Name: "node-2"}}}
	ctx := t.Context()
	type seen struct {
		uuid, ds, thumb, password string
		vm, task                  types.ManagedObjectReference
	}
	var was seen
	var volume string
	for round := range 3 {
		v, err := vcenter.New(context.Background(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		c, err := cnsClient(ctx, login(t, v))
		if err != nil {
			t.Fatal(err)
		}
		vm, err := c.vm(ctx, v, "node-1")
		if err != nil {
			t.Fatal(err)
		}
		pw, _ := v.URL().User.Password()
		now := seen{uuid: v.VMUUID("node-1"), ds: v.DatastoreURL("datastore-1"), thumb: v.Thumbprint(), password: pw, vm: vm}
		task, err := c.cns.CreateVolume(ctx, []cnstypes.CnsVolumeCreateSpec{volumeSpec(fmt.Sprintf("pvc-%d", round))})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := task.WaitForResultEx(ctx); err != nil {
			t.Fatal(err)
		}
		now.task = task.Reference()
		if round == 0 {
			if volume, err = c.create(ctx, "keep"); err != nil {
				t.Fatal(err)
			}
			if _, err := c.attach(ctx, volume, vm); err != nil {
				t.Fatal(err)
			}
		} else {
			if was.task == now.task {
				t.Errorf("task id %s came twice", now.task.Value)
			}
			was.task = now.task
			if was != now {
				t.Errorf("identities changed: %+v, were %+v", now, was)
			}
			if ds := v.Disks()[v.VMUUID("node-1")]; len(ds) != 1 || ds[0].VolumeID != volume {
				t.Errorf("attached after the restart: %+v", ds)
			}
		}
		was = now
		if n := len(v.Volumes()); n != round+2 {
			t.Errorf("round %d: %d volumes", round, n)
		}
		v.Close()
	}
}

func TestTasksAreReportedAtOnce(t *testing.T) {
	v := start(t, vcenter.Config{TLS: true})
	ctx := t.Context()
	c, err := cnsClient(ctx, login(t, v))
	if err != nil {
		t.Fatal(err)
	}
	const n = 50
	begin := time.Now()
	for i := range n {
		id, err := c.create(ctx, fmt.Sprintf("pvc-%d", i))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.delete(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%.1f ms per create and delete", float64(time.Since(begin).Microseconds())/1000/n)
}
