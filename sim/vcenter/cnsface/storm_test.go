package cnsface_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/object"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// TestStorm: clients that do all sorts of things to the same few volumes at
// once leave a state that agrees with itself: each disk has its image, each
// attachment its place in a node and a VM, and the space adds up.
func TestStorm(t *testing.T) {
	t.Parallel()
	l := newLab(t, at("9.2.0"))
	var ids []string
	for i := range 3 {
		ids = append(ids, l.create(fmt.Sprint("pvc-", i), 10))
	}
	var wg sync.WaitGroup
	for worker := range uint64(6) {
		rng := rand.New(rand.NewPCG(7, worker))
		wg.Go(func() {
			run := func(task *object.Task, err error) cnstypes.BaseCnsVolumeOperationResult {
				if err != nil {
					t.Error(err)
					return nil
				}
				info, err := task.WaitForResult(l.ctx)
				if err != nil {
					return nil // a fault of the task
				}
				return info.Result.(cnstypes.CnsVolumeOperationBatchResult).VolumeResults[0]
			}
			for range 12 {
				id, vm := cnstypes.CnsVolumeId{Id: ids[rng.IntN(len(ids))]}, l.vms[rng.IntN(2)]
				switch rng.IntN(9) {
				case 0, 1:
					run(l.cns.AttachVolume(l.ctx, attachSpec(id.Id, vm.Reference())))
				case 2, 3:
					run(l.cns.DetachVolume(l.ctx, attachSpec(id.Id, vm.Reference())))
				case 4:
					run(l.cns.RelocateVolume(l.ctx, cnstypes.NewCnsBlockVolumeRelocateSpec(id.Id, l.ds[rng.IntN(len(l.ds))].Reference())))
				case 5:
					run(l.cns.UnregisterVolume(l.ctx, []cnstypes.CnsUnregisterVolumeSpec{{VolumeId: id, TargetVolumeType: "FCD"}}))
				case 6:
					s := l.spec("again", 10)
					s.BackingObjectDetails.(*cnstypes.CnsBlockBackingDetails).BackingDiskId = id.Id
					run(l.cns.CreateVolume(l.ctx, []cnstypes.CnsVolumeCreateSpec{s}))
				case 7:
					run(l.cns.ExtendVolume(l.ctx, []cnstypes.CnsVolumeExtendSpec{{VolumeId: id, CapacityInMb: int64(10 + rng.IntN(5))}}))
				case 8:
					r := run(l.cns.CreateSnapshots(l.ctx, []cnstypes.CnsSnapshotCreateSpec{{VolumeId: id, Description: "s"}}))
					made, ok := r.(*cnstypes.CnsSnapshotCreateResult)
					if !ok || made.Fault != nil {
						continue
					}
					s := l.spec("clone", 0)
					s.VolumeSource = &cnstypes.CnsSnapshotVolumeSource{VolumeId: id, SnapshotId: made.Snapshot.SnapshotId, LinkedClone: rng.IntN(2) == 0}
					if c := run(l.cns.CreateVolume(l.ctx, []cnstypes.CnsVolumeCreateSpec{s})); c != nil && c.GetCnsVolumeOperationResult().Fault == nil {
						run(l.cns.DeleteVolume(l.ctx, []cnstypes.CnsVolumeId{c.GetCnsVolumeOperationResult().VolumeId}, true))
					}
					run(l.cns.DeleteSnapshots(l.ctx, []cnstypes.CnsSnapshotDeleteSpec{{VolumeId: id, SnapshotId: made.Snapshot.SnapshotId}}))
				}
			}
		})
	}
	wg.Wait()

	state := l.face.State()
	core := cns.New(0)
	for _, d := range append(slices.Clone(state.Disks), disksOf(state)...) {
		core.PutDatastore(cns.Datastore{ID: d.Datastore, Name: d.Datastore, CapacityMB: 1 << 30})
	}
	if err := core.Restore(state); err != nil {
		t.Error(err)
	}
	images := l.disks.sizes()
	for _, d := range append(slices.Clone(state.Disks), disksOf(state)...) {
		if images[d.ID] != d.CapacityMB<<20 {
			t.Errorf("%s has %d MB, its image %d bytes", d.ID, d.CapacityMB, images[d.ID])
		}
		delete(images, d.ID)
	}
	if len(images) > 0 {
		t.Errorf("images of no disk: %v", images)
	}
	if len(state.Attachments) != len(l.nodes.list()) {
		t.Errorf("attachments %+v, in the nodes %v", state.Attachments, l.nodes.list())
	}
	shown := 0
	for _, vm := range l.vms {
		shown += len(l.disksOf(vm))
	}
	if shown != len(state.Attachments) {
		t.Errorf("the VMs show %d disks, attachments are %+v", shown, state.Attachments)
	}
}

func disksOf(s *cns.State) (out []cns.Disk) {
	for _, v := range s.Volumes {
		out = append(out, v.Disk)
	}
	return out
}
