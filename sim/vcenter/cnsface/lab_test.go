package cnsface_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vmware/govmomi"
	govcns "github.com/vmware/govmomi/cns"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/find"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/vcenter/cnsface"
)

// A disk store is what the face asks for.
var _ cnsface.Disks = disk.Store(nil)

// lab is a vCenter with the face, and a client of it.
type lab struct {
	t     *testing.T
	face  *cnsface.Face
	model *simulator.Model
	vc    *govmomi.Client
	cns   *govcns.Client
	ctx   context.Context
	disks *disks
	nodes *nodes
	vms   []*object.VirtualMachine
	ds    []*object.Datastore
}

func newLab(t *testing.T, change ...func(*cnsface.Config)) *lab {
	t.Helper()
	l := &lab{t: t, disks: &disks{size: map[string]int64{}, snaps: map[string][]string{}}, nodes: &nodes{}}
	cfg := cnsface.Config{Seed: 7, Disks: l.disks, Hardware: l.nodes}
	for _, c := range change {
		c(&cfg)
	}
	var err error
	if l.face, err = cnsface.New(cfg); err != nil {
		t.Fatal(err)
	}
	l.model = cnsface.SmallModel(t, 2)
	if err := l.face.Install(l.model.Service); err != nil {
		t.Fatal(err)
	}
	srv := l.model.Service.NewServer()
	t.Cleanup(srv.Close)
	t.Cleanup(l.face.Close)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	l.ctx = ctx
	if l.vc, err = govmomi.NewClient(ctx, srv.URL, true); err != nil {
		t.Fatal(err)
	}
	if l.cns, err = govcns.NewClient(ctx, l.vc.Client); err != nil {
		t.Fatal(err)
	}
	f := find.NewFinder(l.vc.Client)
	dc, err := f.DefaultDatacenter(ctx)
	if err != nil {
		t.Fatal(err)
	}
	f.SetDatacenter(dc)
	if l.vms, err = f.VirtualMachineList(ctx, "*"); err != nil {
		t.Fatal(err)
	}
	if l.ds, err = f.DatastoreList(ctx, "*"); err != nil {
		t.Fatal(err)
	}
	return l
}

// outcome of a call: the result of its one volume, or the error of the task or
// the call.
type outcome struct {
	r   cnstypes.BaseCnsVolumeOperationResult
	err error
}

// wait waits for a task.
func (l *lab) wait(task *object.Task, err error) outcome {
	l.t.Helper()
	if err != nil {
		return outcome{err: err}
	}
	info, err := task.WaitForResult(l.ctx)
	if err != nil {
		return outcome{err: err}
	}
	r, ok := info.Result.(cnstypes.CnsVolumeOperationBatchResult)
	if !ok || len(r.VolumeResults) != 1 {
		l.t.Fatalf("result %#v, want a batch of one", info.Result)
	}
	return outcome{r: r.VolumeResults[0]}
}

// fault is the fault of the result, or of the task, as Go type, with its text.
func (o outcome) fault() (kind, text string) {
	r, err := o.r, o.err
	if err != nil {
		var te interface{ Fault() vim.BaseMethodFault }
		if errors.As(err, &te) {
			return fmt.Sprintf("task %T", te.Fault()), err.Error()
		}
		return fmt.Sprintf("error %T", err), err.Error()
	}
	if f := r.GetCnsVolumeOperationResult().Fault; f != nil {
		return strings.TrimPrefix(fmt.Sprintf("%T", f.Fault), "*"), f.LocalizedMessage
	}
	return "", ""
}

func (l *lab) spec(name string, mb int64) cnstypes.CnsVolumeCreateSpec {
	return cnstypes.CnsVolumeCreateSpec{
		Name:       name,
		VolumeType: string(cnstypes.CnsVolumeTypeBlock),
		Datastores: []vim.ManagedObjectReference{l.ds[0].Reference()},
		Metadata: cnstypes.CnsVolumeMetadata{ContainerCluster: cnstypes.CnsContainerCluster{
			ClusterType: "KUBERNETES", ClusterId: "k1", VSphereUser: "u", ClusterFlavor: "VANILLA"}},
		BackingObjectDetails: &cnstypes.CnsBlockBackingDetails{
			CnsBackingObjectDetails: cnstypes.CnsBackingObjectDetails{CapacityInMb: mb}},
	}
}

func (l *lab) create(name string, mb int64) string {
	l.t.Helper()
	return l.createSpec(l.spec(name, mb))
}

func (l *lab) createSpec(s cnstypes.CnsVolumeCreateSpec) string {
	l.t.Helper()
	return l.ok(l.tryCreate(s)).GetCnsVolumeOperationResult().VolumeId.Id
}

func (l *lab) tryCreate(s ...cnstypes.CnsVolumeCreateSpec) outcome {
	l.t.Helper()
	return l.wait(l.cns.CreateVolume(l.ctx, s))
}

func attachSpec(volume string, vm vim.ManagedObjectReference) []cnstypes.CnsVolumeAttachDetachSpec {
	return []cnstypes.CnsVolumeAttachDetachSpec{{VolumeId: cnstypes.CnsVolumeId{Id: volume}, Vm: vm}}
}

func (l *lab) attach(volume string, vm mo.Reference) outcome {
	l.t.Helper()
	return l.wait(l.cns.AttachVolume(l.ctx, attachSpec(volume, vm.Reference())))
}

func (l *lab) detach(volume string, vm mo.Reference) outcome {
	l.t.Helper()
	return l.wait(l.cns.DetachVolume(l.ctx, attachSpec(volume, vm.Reference())))
}

func (l *lab) delete(volume string) outcome {
	l.t.Helper()
	return l.wait(l.cns.DeleteVolume(l.ctx, []cnstypes.CnsVolumeId{{Id: volume}}, true))
}

func (l *lab) extend(volume string, mb int64) outcome {
	l.t.Helper()
	return l.wait(l.cns.ExtendVolume(l.ctx, []cnstypes.CnsVolumeExtendSpec{{VolumeId: cnstypes.CnsVolumeId{Id: volume}, CapacityInMb: mb}}))
}

func (l *lab) snapshot(volume, description string) outcome {
	l.t.Helper()
	return l.wait(l.cns.CreateSnapshots(l.ctx, []cnstypes.CnsSnapshotCreateSpec{{VolumeId: cnstypes.CnsVolumeId{Id: volume}, Description: description}}))
}

func (l *lab) deleteSnapshot(volume, snap string) outcome {
	l.t.Helper()
	return l.wait(l.cns.DeleteSnapshots(l.ctx, []cnstypes.CnsSnapshotDeleteSpec{{VolumeId: cnstypes.CnsVolumeId{Id: volume}, SnapshotId: cnstypes.CnsSnapshotId{Id: snap}}}))
}

func (l *lab) ok(o outcome) cnstypes.BaseCnsVolumeOperationResult {
	l.t.Helper()
	if k, text := o.fault(); k != "" {
		l.t.Fatalf("%s: %s", k, text)
	}
	return o.r
}

// refused wants a fault of this type; "task " before it means that the task
// itself failed.
func (l *lab) refused(want string, o outcome) (text string) {
	l.t.Helper()
	k, text := o.fault()
	if k != want {
		l.t.Fatalf("fault %q (%s), want %q", k, text, want)
	}
	return text
}

// disksOf reads the disks of a VM that are first class disks, as a client does.
func (l *lab) disksOf(vm mo.Reference) map[string]*vim.VirtualDisk {
	l.t.Helper()
	var m mo.VirtualMachine
	if err := l.vc.RetrieveOne(l.ctx, vm.Reference(), []string{"config.hardware"}, &m); err != nil {
		l.t.Fatal(err)
	}
	out := map[string]*vim.VirtualDisk{}
	for _, d := range m.Config.Hardware.Device {
		if v, ok := d.(*vim.VirtualDisk); ok && v.VDiskId != nil {
			out[v.VDiskId.Id] = v
		}
	}
	return out
}

// poll waits until cond holds.
func poll(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// disks is a store that keeps sizes only.
type disks struct {
	mu    sync.Mutex
	size  map[string]int64
	snaps map[string][]string
	err   error // of the next call
}

func (d *disks) call(f func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.err; err != nil {
		d.err = nil
		return err
	}
	return f()
}

func (d *disks) Create(id string, size int64) error {
	return d.call(func() error {
		if _, ok := d.size[id]; ok {
			return disk.ErrExists
		}
		d.size[id] = size
		return nil
	})
}

func (d *disks) Delete(id string) error {
	return d.call(func() error {
		if _, ok := d.size[id]; !ok {
			return disk.ErrNotFound
		}
		if len(d.snaps[id]) > 0 {
			return disk.ErrInUse
		}
		delete(d.size, id)
		return nil
	})
}

func (d *disks) Grow(id string, size int64) error {
	return d.call(func() error { d.size[id] = size; return nil })
}

func (d *disks) Snapshot(id, snap string) error {
	return d.call(func() error { d.snaps[id] = append(d.snaps[id], snap); return nil })
}

func (d *disks) DeleteSnapshot(id, snap string) error {
	return d.call(func() error {
		d.snaps[id] = slices.DeleteFunc(d.snaps[id], func(s string) bool { return s == snap })
		return nil
	})
}

func (d *disks) Restore(id, snap, newID string, size int64) error {
	return d.call(func() error {
		if !slices.Contains(d.snaps[id], snap) {
			return disk.ErrNotFound
		}
		d.size[newID] = size
		return nil
	})
}

func (d *disks) Clone(id, newID string, size int64) error {
	return d.call(func() error {
		if _, ok := d.size[id]; !ok {
			return disk.ErrNotFound
		}
		d.size[newID] = size
		return nil
	})
}

func (d *disks) Revert(id, snap string) error {
	return d.call(func() error {
		if !slices.Contains(d.snaps[id], snap) {
			return disk.ErrNotFound
		}
		return nil
	})
}

func (d *disks) Changed(id, _, snap string) (out []disk.Extent, err error) {
	err = d.call(func() error {
		if !slices.Contains(d.snaps[id], snap) {
			return disk.ErrNotFound
		}
		out = []disk.Extent{{Length: d.size[id]}}
		return nil
	})
	return out, err
}

func (d *disks) sizes() map[string]int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[string]int64{}
	for k, v := range d.size {
		out[k] = v
	}
	return out
}

// nodes is hardware that notes what is plugged in.
type nodes struct {
	mu      sync.Mutex
	plugged []string // "<vm uuid> <disk uuid> <image>"
	resized int
	err     error
}

func (n *nodes) Attach(_ context.Context, vm, diskUUID, image string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.err; err != nil {
		n.err = nil
		return err
	}
	n.plugged = append(n.plugged, vm+" "+diskUUID+" "+image)
	return nil
}

func (n *nodes) Detach(_ context.Context, vm, diskUUID string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.err; err != nil {
		n.err = nil
		return err
	}
	i := slices.IndexFunc(n.plugged, func(s string) bool { return strings.HasPrefix(s, vm+" "+diskUUID+" ") })
	if i < 0 {
		return errors.New("not plugged in")
	}
	n.plugged = slices.Delete(n.plugged, i, i+1)
	return nil
}

func (n *nodes) Resize(context.Context, string, string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.resized++
	return nil
}

func (n *nodes) list() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.plugged)
}

// call sends a request as it is, with the manager as its receiver.
func (l *lab) call(body soap.HasFault) error {
	req := reflect.ValueOf(body).Elem().FieldByName("Req").Elem()
	req.FieldByName("This").Set(reflect.ValueOf(govcns.CnsVolumeManagerInstance))
	return l.cns.RoundTrip(l.ctx, body, reflect.New(reflect.TypeOf(body).Elem()).Interface().(soap.HasFault))
}
