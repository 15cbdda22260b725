package vcenter_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/find"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/vcenter"
)

// The tests of this file are named after the rows of the tables in
// docs/vsphere-rows.md.

// made by these, a request reaches the server as a client sends it, and what
// comes back is one line: the type of the fault and its text.

func (r *rig) outcome(task *object.Task, err error) error {
	_, _, err = r.result(r.ctx, task, err)
	return err
}

func volumeID(id string) cnstypes.CnsVolumeId { return cnstypes.CnsVolumeId{Id: id} }

func (r *rig) createAs(change func(*cnstypes.CnsVolumeCreateSpec)) (cnstypes.CnsVolumeCreateResult, error) {
	s := volumeSpec("pvc-x")
	change(&s)
	task, err := r.cns.CreateVolume(r.ctx, []cnstypes.CnsVolumeCreateSpec{s})
	_, b, err := r.result(r.ctx, task, err)
	res, _ := b.(*cnstypes.CnsVolumeCreateResult)
	if res == nil {
		res = &cnstypes.CnsVolumeCreateResult{}
	}
	return *res, err
}

func (r *rig) grow(id string, mb int64) error {
	return r.outcome(r.cns.ExtendVolume(r.ctx, []cnstypes.CnsVolumeExtendSpec{{VolumeId: volumeID(id), CapacityInMb: mb}}))
}

func (r *rig) takeSnapshot(id, description string) (cnstypes.CnsSnapshotCreateResult, error) {
	task, err := r.cns.CreateSnapshots(r.ctx, []cnstypes.CnsSnapshotCreateSpec{{VolumeId: volumeID(id), Description: description}})
	_, b, err := r.result(r.ctx, task, err)
	res, _ := b.(*cnstypes.CnsSnapshotCreateResult)
	if res == nil {
		res = &cnstypes.CnsSnapshotCreateResult{}
	}
	return *res, err
}

func (r *rig) snapped(id string) string {
	r.t.Helper()
	s, err := r.takeSnapshot(id, "s")
	r.ok(err)
	return s.Snapshot.SnapshotId.Id
}

func (r *rig) dropSnapshot(id, snap string) error {
	return r.outcome(r.cns.DeleteSnapshots(r.ctx, []cnstypes.CnsSnapshotDeleteSpec{{VolumeId: volumeID(id), SnapshotId: cnstypes.CnsSnapshotId{Id: snap}}}))
}

func (r *rig) snapshotsOf(f cnstypes.CnsSnapshotQueryFilter) cnstypes.CnsSnapshotQueryResult {
	r.t.Helper()
	task, err := r.cns.QuerySnapshots(r.ctx, f)
	r.ok(err)
	info, err := task.WaitForResultEx(r.ctx)
	r.ok(err)
	return info.Result.(cnstypes.CnsSnapshotQueryResult)
}

func (r *rig) matching(f cnstypes.CnsQueryFilter) cnstypes.CnsQueryResult {
	r.t.Helper()
	q, err := r.cns.QueryVolume(r.ctx, &f)
	r.ok(err)
	return *q
}

func (r *rig) describe(id string, m cnstypes.CnsVolumeMetadata) error {
	return r.outcome(r.cns.UpdateVolumeMetadata(r.ctx, []cnstypes.CnsVolumeMetadataUpdateSpec{{VolumeId: volumeID(id), Metadata: m}}))
}

func k8sEntity(kind, name, namespace string) *cnstypes.CnsKubernetesEntityMetadata {
	return &cnstypes.CnsKubernetesEntityMetadata{
		CnsEntityMetadata: cnstypes.CnsEntityMetadata{EntityName: name, ClusterID: "cluster-1"}, EntityType: kind, Namespace: namespace,
	}
}

func k8s(es ...*cnstypes.CnsKubernetesEntityMetadata) cnstypes.CnsVolumeMetadata {
	m := cnstypes.CnsVolumeMetadata{ContainerCluster: cnstypes.CnsContainerCluster{ClusterType: "KUBERNETES", ClusterId: "cluster-1", VSphereUser: "u", ClusterFlavor: "VANILLA"}}
	for _, e := range es {
		m.EntityMetadata = append(m.EntityMetadata, e)
	}
	return m
}

// below has the layers below CNS fail an operation once.
func below(t *testing.T, op string, f types.BaseMethodFault, text string) *rig {
	t.Helper()
	in := &fault.Interceptor{Ledger: &ledger.Ledger{}, Plan: &fault.Plan{}, Classify: func(_ ledger.Hop, err error) string { return vcenter.CodeOf(err) }}
	in.Plan.Arm(fault.Rule{Op: "task:" + op, Nth: 1, Do: fault.Error(&vcenter.Fault{Fault: f, Message: text, Result: true})})
	return newRig(t, vcenter.Config{In: in})
}

// ---- Creating.

func Test2bCreateSameNameTwice(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	if a, b := r.volume("pvc-1"), r.volume("pvc-1"); a == b {
		t.Errorf("one volume %s", a)
	}
	if n := len(r.matching(cnstypes.CnsQueryFilter{Names: []string{"pvc-1"}}).Volumes); n != 2 {
		t.Errorf("%d volumes of the name", n)
	}
}

const callerID = "901e87eb-c2bd-11e9-806f-005056a0c9a0"

func Test2bCreateWithVolumeID(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{Version: "9.1.0"})
	own := func(s *cnstypes.CnsVolumeCreateSpec) { s.VolumeId = &cnstypes.CnsVolumeId{Id: callerID} }
	if res, err := r.createAs(own); err != nil || res.VolumeId.Id != callerID {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestRow02VolumeIDExists(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{Version: "9.1.0"})
	own := func(s *cnstypes.CnsVolumeCreateSpec) { s.VolumeId = &cnstypes.CnsVolumeId{Id: callerID} }
	_, err := r.createAs(own)
	r.ok(err)
	res, err := r.createAs(own)
	r.refused(err, "CnsVolumeAlreadyExistsFault")
	if f, ok := res.Fault.Fault.(*cnstypes.CnsVolumeAlreadyExistsFault); !ok || f.VolumeId.Id != callerID {
		t.Errorf("%#v", res.Fault.Fault)
	}
	// What the driver does: delete that one, make it again.
	r.ok(r.delete(r.ctx, callerID))
	_, err = r.createAs(own)
	r.ok(err)
}

func TestRow03CallerIDNotSupportedBelow(t *testing.T) {
	t.Parallel()
	cause := &types.LocalizedMethodFault{Fault: &types.NotSupported{}, LocalizedMessage: "The operation is not supported on the object."}
	f := &cnstypes.CnsFault{Reason: "VSLM task failed"}
	f.FaultCause = cause
	r := below(t, "CnsCreateVolume", f, "CnsFault error: VSLM task failed")
	res, err := r.createAs(func(s *cnstypes.CnsVolumeCreateSpec) { s.VolumeId = &cnstypes.CnsVolumeId{Id: callerID} })
	r.refused(err, "CnsFault", "VSLM task failed")
	got, ok := res.Fault.Fault.(*cnstypes.CnsFault)
	if !ok || got.FaultCause == nil {
		t.Fatalf("%#v", res.Fault.Fault)
	}
	if _, ok := got.FaultCause.Fault.(*types.NotSupported); !ok {
		t.Errorf("cause %#v", got.FaultCause.Fault)
	}
	_, err = r.createAs(func(*cnstypes.CnsVolumeCreateSpec) {}) // without it
	r.ok(err)
}

func TestRow01AlreadyRegistered(t *testing.T) {
	t.Parallel()
	for version, refused := range map[string]bool{"8.0.3": true, "9.1.0": false} {
		r := newRig(t, vcenter.Config{Version: version})
		id := r.volume("pvc-1")
		res, err := r.createAs(func(s *cnstypes.CnsVolumeCreateSpec) {
			s.BackingObjectDetails = &cnstypes.CnsBlockBackingDetails{BackingDiskId: id}
		})
		if !refused {
			r.ok(err)
			if res.VolumeId.Id != id {
				t.Errorf("%s: registered as %s", version, res.VolumeId.Id)
			}
			continue
		}
		r.refused(err, "CnsAlreadyRegisteredFault")
		if f, ok := res.Fault.Fault.(*cnstypes.CnsAlreadyRegisteredFault); !ok || f.VolumeId.Id != id {
			t.Errorf("%s: %#v", version, res.Fault.Fault)
		}
	}
}

func TestRow04To07HostsFail(t *testing.T) {
	t.Parallel()
	for row, x := range map[string]struct {
		fault types.BaseMethodFault
		text  string
	}{
		"4": {&cnstypes.CnsFault{Reason: "VSLM task failed"}, "CnsFault error: VSLM task failed"},
		"5": {&cnstypes.CnsFault{Reason: "CNS: Failed to create disk.:Fault cause: vmodl.fault.SystemError"}, "CnsFault error: CNS: Failed to create disk.:Fault cause: vmodl.fault.SystemError"},
		"6": {&cnstypes.CnsFault{Reason: "Failed to initialize FcdService: timed out"}, "CnsFault error: Failed to initialize FcdService: timed out"},
		"7": {&types.NotSupported{}, "The operation is not supported on the object."},
	} {
		t.Run(row, func(t *testing.T) {
			r := below(t, "CnsCreateVolume", x.fault, x.text)
			_, err := r.create(r.ctx, "pvc-1")
			r.refused(err, strings.TrimPrefix(fmt.Sprintf("%T", x.fault), "*"), x.text)
			if n := len(r.v.Volumes()); n != 0 {
				t.Errorf("%d volumes", n)
			}
			r.volume("pvc-1") // once it has healed
		})
	}
}

func TestRow08InvalidArguments(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	for name, change := range map[string]func(*cnstypes.CnsVolumeCreateSpec){
		"no name":    func(s *cnstypes.CnsVolumeCreateSpec) { s.Name = "" },
		"no size":    func(s *cnstypes.CnsVolumeCreateSpec) { s.BackingObjectDetails = &cnstypes.CnsBlockBackingDetails{} },
		"no cluster": func(s *cnstypes.CnsVolumeCreateSpec) { s.Metadata.ContainerCluster.ClusterId = "" },
		"entity twice": func(s *cnstypes.CnsVolumeCreateSpec) {
			s.Metadata = k8s(k8sEntity("PERSISTENT_VOLUME", "pv", ""), k8sEntity("PERSISTENT_VOLUME", "pv", ""))
		},
		"both backings": func(s *cnstypes.CnsVolumeCreateSpec) {
			s.BackingObjectDetails = &cnstypes.CnsBlockBackingDetails{BackingDiskId: "x", BackingDiskUrlPath: "https://vc/folder/a.vmdk?dcPath=DC0&dsName=datastore-1"}
		},
	} {
		_, err := r.createAs(change)
		if err == nil || !strings.Contains(err.Error(), "InvalidArgument: A specified parameter was not correct: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, n := range []int{0, 2} { // a batch is one: the task fails
		task, err := r.cns.CreateVolume(r.ctx, make([]cnstypes.CnsVolumeCreateSpec, n))
		r.ok(err)
		r.refused(task.WaitEx(r.ctx), "A specified parameter was not correct")
	}
}

func Test2bCreateUnknownProfile(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	_, err := r.createAs(func(s *cnstypes.CnsVolumeCreateSpec) {
		s.Profile = []types.BaseVirtualMachineProfileSpec{&types.VirtualMachineDefinedProfileSpec{ProfileId: "no-such-profile"}}
	})
	r.refused(err, "InvalidArgument", "profile")
}

func TestRow20SnapshotGone(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	id := r.volume("pvc-1")
	from := func(volume, snap string, linked bool) error {
		_, err := r.createAs(func(s *cnstypes.CnsVolumeCreateSpec) {
			s.VolumeSource = &cnstypes.CnsSnapshotVolumeSource{VolumeId: volumeID(volume), SnapshotId: cnstypes.CnsSnapshotId{Id: snap}, LinkedClone: linked}
		})
		return err
	}
	for _, linked := range []bool{false, true} {
		r.refused(from("no-such-volume", "s", linked), "NotFound")
		r.refused(from(id, "no-such-snapshot", linked), "CnsSnapshotNotFoundFault")
	}
	r.ok(from(id, r.snapped(id), false))
}

func Test2bCreateFromSnapshot(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	id := r.volume("pvc-1")
	snap := r.snapped(id)
	res, err := r.createAs(func(s *cnstypes.CnsVolumeCreateSpec) {
		s.VolumeSource = &cnstypes.CnsSnapshotVolumeSource{VolumeId: volumeID(id), SnapshotId: cnstypes.CnsSnapshotId{Id: snap}}
	})
	r.ok(err)
	a, b := r.matching(cnstypes.CnsQueryFilter{VolumeIds: []cnstypes.CnsVolumeId{volumeID(id)}}), r.matching(cnstypes.CnsQueryFilter{VolumeIds: []cnstypes.CnsVolumeId{res.VolumeId}})
	if a.Volumes[0].DatastoreUrl != b.Volumes[0].DatastoreUrl || b.Volumes[0].BackingObjectDetails.GetCnsBackingObjectDetails().CapacityInMb != 100 {
		t.Errorf("restored %+v of %+v", b.Volumes, a.Volumes)
	}
}

// The size of a snapshot is the size of what is made of it; the upstream
// driver checks that before it asks.
func TestRow21OtherSizeThanSource(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	id := r.volume("pvc-1")
	snap := r.snapped(id)
	_, err := r.createAs(func(s *cnstypes.CnsVolumeCreateSpec) {
		s.BackingObjectDetails.GetCnsBackingObjectDetails().CapacityInMb = 101
		s.VolumeSource = &cnstypes.CnsSnapshotVolumeSource{VolumeId: volumeID(id), SnapshotId: cnstypes.CnsSnapshotId{Id: snap}}
	})
	r.refused(err, "InvalidArgument", "capacityInMb")
}

// ---- Deleting.

func TestRow22DeleteOfNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	r.refused(r.delete(r.ctx, "no-such-volume"), "*types.NotFound: The object or item referred to could not be found.")
	id := r.volume("pvc-1")
	r.ok(r.delete(r.ctx, id))
	r.refused(r.delete(r.ctx, id), "*types.NotFound")
}

func TestRow24DeleteInUse(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	id, vm := r.volume("pvc-1"), r.node("node-1")
	r.plugged(id, vm)
	r.refused(r.delete(r.ctx, id), "*types.ResourceInUse: The resource 'volume' is in use.")
	r.ok(r.detach(r.ctx, id, vm.Reference()))
	snap := r.snapped(id)
	r.refused(r.delete(r.ctx, id), "*types.ResourceInUse: The resource 'volume' is in use.")
	r.ok(r.dropSnapshot(id, snap))
	r.ok(r.delete(r.ctx, id))
}

func TestRow25DeleteInvalidState(t *testing.T) {
	t.Parallel()
	const text = "CnsFault error: CNS: Failed to delete disk.:Fault cause: vim.fault.InvalidState"
	r := below(t, "CnsDeleteVolume", &cnstypes.CnsFault{Reason: strings.TrimPrefix(text, "CnsFault error: ")}, text)
	id := r.volume("pvc-1")
	r.refused(r.delete(r.ctx, id), "*types.CnsFault", text)
	r.ok(r.delete(r.ctx, id))
}

// A second delete while the first one runs is no fault.
func TestRow28DeleteTwiceAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	id := r.volume("pvc-1")
	hold := r.v.HoldTasks("CnsDeleteVolume")
	defer hold.Release()
	var tasks []*object.Task
	for range 2 {
		task, err := r.cns.DeleteVolume(r.ctx, []cnstypes.CnsVolumeId{volumeID(id)}, true)
		r.ok(err)
		tasks = append(tasks, task)
	}
	hold.Release()
	for _, task := range tasks {
		r.ok(r.outcome(task, nil))
	}
}

// ---- Attaching and detaching.

func TestRow29AttachTwiceSameVM(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	id, vm := r.volume("pvc-1"), r.node("node-1")
	uuid, err := r.attach(r.ctx, id, vm.Reference())
	r.ok(err)
	_, err = r.attach(r.ctx, id, vm.Reference())
	r.refused(err, "*types.ResourceInUse: The resource 'volume' is in use.")
	// The VM's hardware tells a client that it has the disk.
	if d := r.disk(id, vm); d == nil || d.Backing.(*types.VirtualDiskFlatVer2BackingInfo).Uuid != uuid {
		t.Errorf("disk %+v, want %s", d, uuid)
	}
}

func TestRow29AttachTwiceSameVMSince91(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{Version: "9.1.0"})
	id, vm := r.volume("pvc-1"), r.node("node-1")
	first, err := r.attach(r.ctx, id, vm.Reference())
	r.ok(err)
	if again, err := r.attach(r.ctx, id, vm.Reference()); err != nil || again != first {
		t.Errorf("%s, then %s, %v", first, again, err)
	}
}

func TestRow30AttachElsewhere(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"8.0.3", "9.1.0"} {
		r := newRig(t, vcenter.Config{Version: version})
		id := r.volume("pvc-1")
		r.plugged(id, r.node("node-1"))
		_, err := r.attach(r.ctx, id, r.node("node-2").Reference())
		r.refused(err, "*types.ResourceInUse: The resource 'volume' is in use.")
	}
}

// The fault is the volume's result's, never the task's, which would lose its
// type on the way through the upstream driver.
func TestRow31AttachFaultsAreResults(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	id := r.volume("pvc-1")
	r.plugged(id, r.node("node-1"))
	task, err := r.cns.AttachVolume(r.ctx, []cnstypes.CnsVolumeAttachDetachSpec{{VolumeId: volumeID(id), Vm: r.node("node-2").Reference()}})
	r.ok(err)
	info, err := task.WaitForResultEx(r.ctx)
	if err != nil || info.State != types.TaskInfoStateSuccess {
		t.Errorf("the task: %+v, %v", info, err)
	}
}

func Test2bAttachUnknownVolume(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	_, err := r.attach(r.ctx, "no-such-volume", r.node("node-1").Reference())
	r.refused(err, "*types.NotFound")
}

func Test2bAttachAddsADisk(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	vm := r.node("node-1")
	seen := map[string]bool{}
	for i := range 3 {
		id := r.volume(fmt.Sprint("pvc-", i))
		uuid, err := r.attach(r.ctx, id, vm.Reference())
		r.ok(err)
		d := r.disk(id, vm)
		if d == nil || d.Backing.(*types.VirtualDiskFlatVer2BackingInfo).Uuid != uuid || !strings.HasPrefix(uuid, "6000c29") || seen[uuid] {
			t.Errorf("disk %+v with uuid %s", d, uuid)
		}
		seen[uuid] = true
	}
}

// A disk that CNS knows nothing of any more.
func TestRow35NotRegistered(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	id := r.volume("pvc-1")
	r.ok(r.outcome(r.cns.DeleteVolume(r.ctx, []cnstypes.CnsVolumeId{volumeID(id)}, false)))
	_, err := r.attach(r.ctx, id, r.node("node-1").Reference())
	r.refused(err, "*types.CnsNotRegisteredFault")
}

// Real faults come without a type at times, as external-attacher#460 shows.
func TestRow35FaultWithoutType(t *testing.T) {
	t.Parallel()
	r := below(t, "CnsAttachVolume", nil, "fault.CnsNotRegisteredFault.summary")
	id := r.volume("pvc-1")
	task, err := r.cns.AttachVolume(r.ctx, []cnstypes.CnsVolumeAttachDetachSpec{{VolumeId: volumeID(id), Vm: r.node("node-1").Reference()}})
	r.ok(err)
	info, err := task.WaitForResultEx(r.ctx)
	r.ok(err)
	f := info.Result.(cnstypes.CnsVolumeOperationBatchResult).VolumeResults[0].GetCnsVolumeOperationResult().Fault
	if f == nil || f.Fault != nil || f.LocalizedMessage != "fault.CnsNotRegisteredFault.summary" {
		t.Errorf("%+v", f)
	}
}

func TestRow41DetachUnknownVolume(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	r.refused(r.detach(r.ctx, "no-such-volume", r.node("node-1").Reference()), "*types.NotFound")
}

func TestRow43DetachFromTheWrongVM(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	id, vm := r.volume("pvc-1"), r.node("node-1")
	r.plugged(id, vm)
	r.refused(r.detach(r.ctx, id, r.node("node-2").Reference()), "*types.InvalidArgument")
	if r.disk(id, vm) == nil {
		t.Error("the right VM lost its disk")
	}
}

func Test2bDetachWhatIsNotAttached(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	r.ok(r.detach(r.ctx, r.volume("pvc-1"), r.node("node-1").Reference()))
}

// ---- Extending.

func TestRow45ExtendWithSnapshot(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	id := r.volume("pvc-1")
	snap := r.snapped(id)
	r.refused(r.grow(id, 200), "*types.CnsFault", "Failed to extend disk")
	r.ok(r.dropSnapshot(id, snap))
	r.ok(r.grow(id, 200))
}

func TestRow46ExtendUnknown(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	r.refused(r.grow("no-such-volume", 200), "*types.NotFound")
}

func Test2bExtend(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	id, vm := r.volume("pvc-1"), r.node("node-1")
	r.plugged(id, vm)
	r.ok(r.grow(id, 200))
	r.ok(r.grow(id, 200)) // the size that it has
	r.refused(r.grow(id, 100), "*types.InvalidArgument", "capacityInMb")
	if d := r.disk(id, vm); d.CapacityInBytes != 200<<20 {
		t.Errorf("the VM's disk has %d bytes", d.CapacityInBytes)
	}
}

// ---- Snapshots.

func TestRow49SnapshotMadeButFailed(t *testing.T) {
	t.Parallel()
	f := &cnstypes.CnsSnapshotCreatedFault{SnapshotId: cnstypes.CnsSnapshotId{Id: callerID}}
	r := below(t, "CnsCreateSnapshots", f, "CnsSnapshotCreatedFault error")
	res, err := r.takeSnapshot(r.volume("pvc-1"), "s")
	r.refused(err, "CnsSnapshotCreatedFault")
	if got, ok := res.Fault.Fault.(*cnstypes.CnsSnapshotCreatedFault); !ok || got.SnapshotId.Id != callerID {
		t.Errorf("%#v", res.Fault.Fault)
	}
}

// A client that lost its task finds the snapshot by its description.
func TestRow50SnapshotFoundByDescription(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	id := r.volume("pvc-1")
	description := "snap-1-" + id
	task, err := r.cns.CreateSnapshots(r.ctx, []cnstypes.CnsSnapshotCreateSpec{{VolumeId: volumeID(id), Description: description}})
	r.ok(err)
	_, err = task.WaitForResultEx(r.ctx)
	r.ok(err)
	r.v.PurgeTasks()
	_, err = task.WaitForResultEx(r.ctx)
	r.refused(err, "has already been deleted")
	found := 0
	for _, e := range r.snapshotsOf(cnstypes.CnsSnapshotQueryFilter{SnapshotQuerySpecs: []cnstypes.CnsSnapshotQuerySpec{{VolumeId: volumeID(id)}}}).Entries {
		if e.Snapshot.Description == description {
			found++
		}
	}
	if found != 1 {
		t.Errorf("%d snapshots", found)
	}
}

func TestRow51SnapshotRefusedBelow(t *testing.T) {
	t.Parallel()
	r := below(t, "CnsCreateSnapshots", &cnstypes.CnsFault{Reason: "A specified parameter was not correct: "}, "CnsFault error: A specified parameter was not correct: ")
	id := r.volume("pvc-1")
	_, err := r.takeSnapshot(id, "s")
	r.refused(err, "*types.CnsFault", "A specified parameter was not correct")
	if n := len(r.v.Snapshots()); n != 0 {
		t.Errorf("%d snapshots", n)
	}
}

func TestRow52SnapshotLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{SnapshotLimit: 3})
	id := r.volume("pvc-1")
	for range 3 {
		r.snapped(id)
	}
	_, err := r.takeSnapshot(id, "one too many")
	r.refused(err, "*types.CnsFault", "Failed to create snapshot")
	_, err = r.takeSnapshot("no-such-volume", "s")
	r.refused(err, "*types.NotFound")
}

func TestRow54DeleteUnknownSnapshot(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	id := r.volume("pvc-1")
	r.refused(r.dropSnapshot(id, "no-such-snapshot"), "*types.NotFound")
	r.refused(r.dropSnapshot("no-such-volume", "no-such-snapshot"), "*types.NotFound")
}

// There is a result for each volume, whatever became of it.
func TestRow55DeleteSnapshotHasAResult(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	task, err := r.cns.DeleteSnapshots(r.ctx, []cnstypes.CnsSnapshotDeleteSpec{{VolumeId: volumeID("no-such-volume"), SnapshotId: cnstypes.CnsSnapshotId{Id: "s"}}})
	r.ok(err)
	info, err := task.WaitForResultEx(r.ctx)
	r.ok(err)
	if n := len(info.Result.(cnstypes.CnsVolumeOperationBatchResult).VolumeResults); n != 1 {
		t.Errorf("%d results", n)
	}
}

func Test2bSnapshots(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{Version: "9.1.0"})
	id := r.volume("pvc-1")
	task, err := r.cns.CreateSnapshots(r.ctx, []cnstypes.CnsSnapshotCreateSpec{{VolumeId: volumeID(id), Description: "s", SnapshotId: &cnstypes.CnsSnapshotId{Id: callerID}}})
	_, b, err := r.result(r.ctx, task, err)
	r.ok(err)
	if s := b.(*cnstypes.CnsSnapshotCreateResult); s.Snapshot.SnapshotId.Id != callerID || s.AggregatedSnapshotCapacityInMb <= 0 || s.Snapshot.CreateTime.IsZero() {
		t.Errorf("%+v", s)
	}
	d := r.matching(cnstypes.CnsQueryFilter{VolumeIds: []cnstypes.CnsVolumeId{volumeID(id)}}).Volumes[0].BackingObjectDetails.(*cnstypes.CnsBlockBackingDetails)
	if d.AggregatedSnapshotCapacityInMb <= 0 {
		t.Errorf("%+v", d)
	}
}

func Test2bQuerySnapshots(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	id := r.volume("pvc-1")
	for range 5 {
		r.snapped(id)
	}
	of := []cnstypes.CnsSnapshotQuerySpec{{VolumeId: volumeID(id)}}
	var seen int
	cur := &cnstypes.CnsCursor{Limit: 2}
	for range 3 {
		q := r.snapshotsOf(cnstypes.CnsSnapshotQueryFilter{SnapshotQuerySpecs: of, Cursor: cur})
		seen += len(q.Entries)
		if q.Cursor.TotalRecords != 5 {
			t.Errorf("cursor %+v", q.Cursor)
		}
		cur = &q.Cursor
	}
	if seen != 5 || cur.Offset != 5 {
		t.Errorf("%d seen, cursor %+v", seen, cur)
	}
	q := r.snapshotsOf(cnstypes.CnsSnapshotQueryFilter{SnapshotQuerySpecs: []cnstypes.CnsSnapshotQuerySpec{{VolumeId: volumeID("no-such-volume")}}})
	if len(q.Entries) != 1 || q.Entries[0].Error == nil {
		t.Fatalf("%+v", q)
	}
	if _, ok := q.Entries[0].Error.Fault.(*cnstypes.CnsVolumeNotFoundFault); !ok {
		t.Errorf("%#v", q.Entries[0].Error.Fault)
	}
}

// ---- Queries and metadata.

func Test2bQueryFilters(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	const n = 104
	for i := range n {
		s := volumeSpec(fmt.Sprintf("pvc-%03d", i))
		if i == 7 {
			s.Metadata = k8s(k8sEntity("PERSISTENT_VOLUME_CLAIM", "data", "default"))
		}
		_, err := r.cns.CreateVolume(r.ctx, []cnstypes.CnsVolumeCreateSpec{s})
		r.ok(err)
	}
	eventually(t, func() bool { return len(r.v.Volumes()) == n }, "volumes")
	first := r.matching(cnstypes.CnsQueryFilter{})
	if len(first.Volumes) != 100 || first.Cursor.TotalRecords != n || first.Cursor.Offset != 100 {
		t.Errorf("%d volumes, cursor %+v", len(first.Volumes), first.Cursor)
	}
	if rest := r.matching(cnstypes.CnsQueryFilter{Cursor: &first.Cursor}); len(rest.Volumes) != n-100 {
		t.Errorf("then %d", len(rest.Volumes))
	}
	all, err := r.cns.QueryAllVolume(r.ctx, cnstypes.CnsQueryFilter{}, cnstypes.CnsQuerySelection{Names: []string{"VOLUME_NAME"}})
	r.ok(err)
	if len(all.Volumes) != n || all.Volumes[0].Name == "" || all.Volumes[0].DatastoreUrl != "" || all.Volumes[0].BackingObjectDetails != nil {
		t.Errorf("%d volumes, the first %+v", len(all.Volumes), all.Volumes[0])
	}
	// The asynchronous query has every filter too.
	name := cnstypes.CnsQueryFilter{Names: []string{"pvc-007"}}
	task, err := r.cns.QueryVolumeAsync(r.ctx, name, &cnstypes.CnsQuerySelection{Names: []string{"VOLUME_NAME"}})
	_, b, err := r.result(r.ctx, task, err)
	r.ok(err)
	if q := b.(*cnstypes.CnsAsyncQueryResult).QueryResult; len(q.Volumes) != 1 || q.Volumes[0].Name != "pvc-007" || q.Volumes[0].DatastoreUrl != "" {
		t.Errorf("%+v", q)
	}
	k := cnstypes.CnsKubernetesQueryFilter{Namespaces: []string{"default"}, PvcNames: []string{"data"}}
	q, err := r.cns.QueryVolume(r.ctx, &k)
	if err != nil || len(q.Volumes) != 1 || q.Volumes[0].Name != "pvc-007" {
		t.Errorf("by claim: %+v, %v", q, err)
	}
}

// Test2bQueryAsyncFilters: each field of the filter, in all three queries.
func Test2bQueryAsyncFilters(t *testing.T) {
	t.Parallel()
	const gold = "11111111-0000-4000-8000-000000000000"
	r := newRig(t, vcenter.Config{
		Version: "9.2.0", Datastores: []vcenter.Datastore{{Name: "vmfs"}, {Name: "away"}, {Name: "vsan", Type: "vsan"}},
		Policies: append(vcenter.DefaultPolicies(), vcenter.Policy{Name: "gold", ID: gold, Tags: []vcenter.TagRule{{Category: "tier", Names: []string{"gold"}}}}),
	})
	r.ok(r.v.Tag("vmfs", "tier", "gold"))
	ids := map[string]string{}
	for name, ds := range map[string]string{"plain": "vmfs", "gold": "vmfs", "away": "away", "default": "vsan"} {
		s := blockVolume(name, 10, r.store(ds).Reference())
		if name == "gold" {
			s.Profile = []types.BaseVirtualMachineProfileSpec{&types.VirtualMachineDefinedProfileSpec{ProfileId: gold}}
			s.Metadata = k8s(k8sEntity("PERSISTENT_VOLUME", "pv-gold", ""))
			s.Metadata.ContainerCluster.ClusterId = "cluster-gold"
			s.Metadata.EntityMetadata[0].(*cnstypes.CnsKubernetesEntityMetadata).Labels = []types.KeyValue{{Key: "app", Value: "db"}, {Key: "env", Value: "prod"}}
		}
		ids[name] = r.made(s)
	}
	r.ok(r.cns.SetVolumeControlFlags(r.ctx, []cnstypes.CnsVolumeControlFlagsSpec{{VolumeId: volumeID(ids["plain"]), ControlFlags: []string{string(cnstypes.CnsVolumeControlFlagsEnableChangedBlockTracking)}}}))
	r.ok(r.v.DatastoreAccessible("away", "", false))
	r.ok(r.v.Untag("vmfs", "tier", "gold")) // the volume meets its policy no longer
	type filter = cnstypes.CnsQueryFilter
	for what, x := range map[string]struct {
		filter filter
		want   string
	}{
		"nothing":         {filter{}, "away default gold plain"},
		"volumeIds":       {filter{VolumeIds: []cnstypes.CnsVolumeId{volumeID(ids["gold"]), volumeID("x"), volumeID(ids["away"])}}, "away gold"},
		"names":           {filter{Names: []string{"plain", "x"}}, "plain"},
		"cluster":         {filter{ContainerClusterIds: []string{"cluster-gold"}}, "gold"},
		"policy":          {filter{StoragePolicyId: gold}, "gold"},
		"default policy":  {filter{StoragePolicyId: vsanDefaultPolicy}, "default"},
		"datastores":      {filter{Datastores: []types.ManagedObjectReference{r.store("away").Reference(), r.store("vsan").Reference()}}, "away default"},
		"label":           {filter{Labels: []types.KeyValue{{Key: "app", Value: "x"}, {Key: "env", Value: "prod"}}}, "gold"},
		"other label":     {filter{Labels: []types.KeyValue{{Key: "app", Value: "prod"}}}, ""},
		"compliant":       {filter{ComplianceStatus: "compliant"}, "default"},
		"nonCompliant":    {filter{ComplianceStatus: "nonCompliant"}, "gold"},
		"notApplicable":   {filter{ComplianceStatus: "notApplicable"}, "away plain"},
		"health":          {filter{HealthStatus: "red"}, "away"},
		"accessibility":   {filter{DatastoreAccessibilityStatus: "accessible"}, "default gold plain"},
		"tracked":         {filter{ChangedBlockTracking: cnstypes.CnsVolumeCBTStatusEnabled}, "plain"},
		"not tracked":     {filter{ChangedBlockTracking: cnstypes.CnsVolumeCBTStatusDisabled, Names: []string{"plain", "gold"}}, "gold"},
		"all must match":  {filter{Names: []string{"gold"}, HealthStatus: "red"}, ""},
		"beyond the last": {filter{Cursor: &cnstypes.CnsCursor{Offset: 4, Limit: 2}}, ""},
	} {
		names := func(q cnstypes.CnsQueryResult) string {
			var out []string
			for _, v := range q.Volumes {
				out = append(out, v.Name)
			}
			slices.Sort(out)
			return strings.Join(out, " ")
		}
		task, err := r.cns.QueryVolumeAsync(r.ctx, x.filter, nil)
		_, b, err := r.result(r.ctx, task, err)
		r.ok(err)
		all, err := r.cns.QueryAllVolume(r.ctx, x.filter, cnstypes.CnsQuerySelection{})
		r.ok(err)
		async := b.(*cnstypes.CnsAsyncQueryResult).QueryResult
		if a, b, c := names(async), names(r.matching(x.filter)), names(*all); a != x.want || b != x.want || c != x.want {
			t.Errorf("%s: async %q, paged %q, all %q, want %q", what, a, b, c, x.want)
		}
	}
	for _, bad := range []filter{{ComplianceStatus: "fine"}, {HealthStatus: "blue"}, {Cursor: &cnstypes.CnsCursor{Offset: -1}}} {
		_, err := r.cns.QueryVolume(r.ctx, &bad)
		r.refused(err, "A specified parameter was not correct: filter.")
		task, err := r.cns.QueryVolumeAsync(r.ctx, bad, nil)
		r.ok(err)
		r.refused(task.WaitEx(r.ctx), "A specified parameter was not correct: filter.")
	}
}

func TestRow57QueryWithoutSession(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	r.v.KillSessions()
	_, err := r.cns.QueryVolume(r.ctx, &cnstypes.CnsQueryFilter{})
	r.refused(err, "NotAuthenticated")
}

func TestRow62MetadataOfNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	r.refused(r.describe("no-such-volume", k8s()), "*types.NotFound")
	id := r.volume("pvc-1")
	r.ok(r.outcome(r.cns.DeleteVolume(r.ctx, []cnstypes.CnsVolumeId{volumeID(id)}, false)))
	r.refused(r.describe(id, k8s()), "*types.CnsNotRegisteredFault")
}

func TestRow63BadMetadata(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	id := r.volume("pvc-1")
	r.refused(r.describe(id, cnstypes.CnsVolumeMetadata{}), "*types.InvalidArgument", "clusterId")
	r.refused(r.describe(id, k8s(k8sEntity("POD", "p", "default"), k8sEntity("POD", "p", "default"))), "*types.InvalidArgument", "entityMetadata")
}

func Test2bMetadataIsMerged(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	id := r.volume("pvc-1")
	r.ok(r.describe(id, k8s(k8sEntity("PERSISTENT_VOLUME", "pv", ""))))
	r.ok(r.describe(id, k8s(k8sEntity("PERSISTENT_VOLUME_CLAIM", "data", "default"))))
	names := func() (out []string) {
		for _, e := range r.matching(cnstypes.CnsQueryFilter{VolumeIds: []cnstypes.CnsVolumeId{volumeID(id)}}).Volumes[0].Metadata.EntityMetadata {
			out = append(out, e.(*cnstypes.CnsKubernetesEntityMetadata).EntityName)
		}
		return out
	}
	if got := fmt.Sprint(names()); got != "[pv data]" {
		t.Errorf("entities %s", got)
	}
	gone := k8sEntity("PERSISTENT_VOLUME_CLAIM", "data", "default")
	gone.Delete = true
	r.ok(r.describe(id, k8s(gone)))
	if got := fmt.Sprint(names()); got != "[pv]" {
		t.Errorf("entities %s", got)
	}
}

// ---- Relocating, unregistering, limits.

// While a volume moves, CNS refuses what would change its disk.
func TestRow64OperationWhileRelocating(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	id := r.volume("pvc-1")
	home := r.matching(cnstypes.CnsQueryFilter{VolumeIds: []cnstypes.CnsVolumeId{volumeID(id)}}).Volumes[0].DatastoreUrl
	f := find.NewFinder(r.Client.Client, false)
	dc, err := f.Datacenter(r.ctx, r.v.Datacenter())
	r.ok(err)
	f.SetDatacenter(dc)
	var target types.ManagedObjectReference
	for _, name := range r.v.DatastoreNames() {
		if r.v.DatastoreURL(name) != home {
			ds, err := f.Datastore(r.ctx, name)
			r.ok(err)
			target = ds.Reference()
		}
	}
	hold := r.v.HoldTasks("CnsRelocateVolume")
	defer hold.Release()
	move, err := r.cns.RelocateVolume(r.ctx, cnstypes.NewCnsBlockVolumeRelocateSpec(id, target))
	r.ok(err)
	again, err := r.cns.RelocateVolume(r.ctx, cnstypes.NewCnsBlockVolumeRelocateSpec(id, target))
	r.ok(err)
	r.refused(r.grow(id, 200), "*types.CnsFault", "TaskInProgress")
	_, err = r.attach(r.ctx, id, r.node("node-1").Reference())
	r.refused(err, "*types.CnsFault", "TaskInProgress")
	_, err = r.takeSnapshot(id, "s")
	r.refused(err, "*types.CnsFault", "TaskInProgress")
	r.refused(r.delete(r.ctx, id), "*types.CnsFault", "TaskInProgress")
	r.ok(r.describe(id, k8s())) // metadata is CNS's own
	hold.Release()
	r.ok(r.outcome(move, nil))
	r.refused(r.outcome(again, nil), "*types.CnsFault", "TaskInProgress")
	r.ok(r.grow(id, 200))
	v := r.matching(cnstypes.CnsQueryFilter{VolumeIds: []cnstypes.CnsVolumeId{volumeID(id)}}).Volumes[0]
	if v.DatastoreUrl == home || v.BackingObjectDetails.GetCnsBackingObjectDetails().CapacityInMb != 200 {
		t.Errorf("%+v", v)
	}
}

func TestRow65UnregisterAndRegister(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{Version: "9.1.0"})
	id, vm := r.volume("pvc-1"), r.node("node-1")
	unregister := func() error {
		return r.outcome(r.cns.UnregisterVolume(r.ctx, []cnstypes.CnsUnregisterVolumeSpec{{VolumeId: volumeID(id), TargetVolumeType: "FCD"}}))
	}
	r.plugged(id, vm)
	r.refused(unregister(), "*types.InvalidState")
	r.ok(r.detach(r.ctx, id, vm.Reference()))
	r.ok(unregister())
	r.refused(unregister(), "*types.CnsNotRegisteredFault")
	res, err := r.createAs(func(s *cnstypes.CnsVolumeCreateSpec) {
		s.BackingObjectDetails = &cnstypes.CnsBlockBackingDetails{BackingDiskId: id}
	})
	if err != nil || res.VolumeId.Id != id {
		t.Errorf("%+v, %v", res, err)
	}
}

// Before 9.1 there is no such method.
func TestRow65NoUnregisterBefore91(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	_, err := r.cns.UnregisterVolume(r.ctx, []cnstypes.CnsUnregisterVolumeSpec{{VolumeId: volumeID("x"), TargetVolumeType: "FCD"}})
	r.refused(err, "The method is not found on the object.")
}

func TestRow67LimitsOfAQuery(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	ids := make([]cnstypes.CnsVolumeId, 1001)
	for i := range ids {
		ids[i] = volumeID(fmt.Sprint(i))
	}
	_, err := r.cns.QueryVolume(r.ctx, &cnstypes.CnsQueryFilter{VolumeIds: ids})
	r.refused(err, "A specified parameter was not correct", "volumeIds")
	if _, err := r.cns.QueryVolume(r.ctx, &cnstypes.CnsQueryFilter{VolumeIds: ids[:1000]}); err != nil {
		t.Errorf("1000 ids: %v", err)
	}
}

// A virtual disk that is no volume yet becomes one, under an id of the
// client's choice where it has one; a request that is refused leaves it as it
// was.
func Test2bCreateOfBackingDiskURLPath(t *testing.T) {
	t.Parallel()
	store := disk.NewMemory()
	t.Cleanup(func() { store.Close() })
	r := newRig(t, vcenter.Config{Version: "9.1.0", Disks: store})
	dc, err := find.NewFinder(r.Client.Client, false).Datacenter(r.ctx, r.v.Datacenter())
	r.ok(err)
	for _, name := range []string{"a", "b"} {
		r.ok(r.done(object.NewVirtualDiskManager(r.Client.Client).CreateVirtualDisk(r.ctx, "[datastore-1] legacy/"+name+".vmdk", dc, &types.FileBackedVirtualDiskSpec{
			VirtualDiskSpec: types.VirtualDiskSpec{DiskType: string(types.VirtualDiskTypeThin), AdapterType: string(types.VirtualDiskAdapterTypeLsiLogic)}, CapacityKb: 2 << 10,
		})))
	}
	of := func(path, id, cluster string) (cnstypes.CnsVolumeCreateResult, error) {
		return r.createAs(func(s *cnstypes.CnsVolumeCreateSpec) {
			s.Metadata.ContainerCluster.ClusterId = cluster
			s.BackingObjectDetails = &cnstypes.CnsBlockBackingDetails{BackingDiskUrlPath: "https://vc/folder/" + path + "?dcPath=DC0&dsName=datastore-1"}
			if id != "" {
				s.VolumeId = &cnstypes.CnsVolumeId{Id: id}
			}
		})
	}
	_, err = of("legacy/none.vmdk", "", "k1")
	r.refused(err, "*types.CnsFault", "FileNotFound")
	_, err = of("legacy/a.vmdk", "", "") // no cluster
	r.refused(err, "*types.InvalidArgument")
	if n := len(r.v.Volumes()); n != 0 {
		t.Errorf("%d volumes", n)
	}
	res, err := of("legacy/a.vmdk", "", "k1")
	r.ok(err)
	again, err := of("legacy/a.vmdk", "", "k1")
	r.refused(err, "CnsAlreadyRegisteredFault")
	if f, ok := again.Fault.Fault.(*cnstypes.CnsAlreadyRegisteredFault); !ok || f.VolumeId != res.VolumeId {
		t.Errorf("%#v", again.Fault.Fault)
	}
	res, err = of("legacy/b.vmdk", callerID, "k1")
	if err != nil || res.VolumeId.Id != callerID {
		t.Errorf("%+v, %v", res, err)
	}
	if info, err := store.Stat(callerID); err != nil || info.Size != 2<<20 || len(store.List()) != 2 {
		t.Errorf("image %+v, %v of %d", info, err, len(store.List()))
	}
	r.ok(r.delete(r.ctx, callerID))
	if len(store.List()) != 1 {
		t.Errorf("%d images", len(store.List()))
	}
}

func TestRow34EncryptedVolumeOnPlainVM(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{Nodes: []vcenter.Node{{Name: "node-1"}, {Name: "node-2", Encrypted: true}}})
	id := r.volume("pvc-1")
	r.ok(r.outcome(r.cns.UpdateVolumeCrypto(r.ctx, []cnstypes.CnsVolumeCryptoUpdateSpec{{
		VolumeId: volumeID(id), DisksCrypto: &types.DiskCryptoSpec{Crypto: &types.CryptoSpecEncrypt{CryptoKeyId: types.CryptoKeyId{KeyId: "k"}}},
	}})))
	_, err := r.attach(r.ctx, id, r.node("node-1").Reference())
	r.refused(err, "*types.CnsFault", "Fault cause: vim.fault.NotSupported")
	r.plugged(id, r.node("node-2"))
}
