package vsphere

import (
	"context"
	"strings"
	"time"

	cnsmethods "github.com/vmware/govmomi/cns/methods"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/driver/controller"
)

// Attach implements controller.Backend. The node id is the VM's BIOS uuid.
func (b *Backend) Attach(ctx context.Context, r controller.Attach) (_ map[string]string, err error) {
	volume, node := r.Volume, r.Node
	ctx, leave := b.enter(ctx)
	defer leave()
	defer b.metrics.observeCSI("attach-volume", time.Now(), &err)
	if !isUUID(volume) {
		return nil, notFound(volume)
	}
	noNode := controller.Errorf(controller.NotFound, "node %q: no virtual machine has this BIOS uuid", node)
	if !isUUID(node) {
		return nil, noNode
	}
	var vm *machine
	var disk string
	err = b.do(ctx, operation{
		subject: volumeKey(volume),
		name:    "attach-volume",
		params:  map[string]string{"node": node},
		look: func(ctx context.Context, _ *outcome) (bool, error) {
			var err error
			if vm, err = b.machine(ctx, node); err != nil {
				return false, err
			}
			if vm == nil {
				return false, noNode
			}
			disk = vm.disks[strings.ToLower(volume)]
			return disk != "", nil
		},
		start: func(ctx context.Context, s *session) (types.ManagedObjectReference, error) {
			res, err := cnsmethods.CnsAttachVolume(ctx, s.cns, &cnstypes.CnsAttachVolume{This: volumeManager,
				AttachSpecs: []cnstypes.CnsVolumeAttachDetachSpec{{VolumeId: volumeID(volume), Vm: vm.ref}}})
			if err != nil {
				return types.ManagedObjectReference{}, err
			}
			return res.Returnval, nil
		},
		end: func(ctx context.Context, r cnstypes.BaseCnsVolumeOperationResult) error {
			if a, ok := r.(*cnstypes.CnsVolumeAttachResult); ok && a.DiskUUID != "" {
				disk = diskUUID(a.DiskUUID)
				return nil
			}
			// The hardware knows.
			m, err := b.machine(ctx, node)
			if err != nil {
				return err
			}
			if m == nil || m.disks[strings.ToLower(volume)] == "" {
				return controller.Errorf(controller.Unavailable, "attach-volume: volume %s is attached to node %s, but its disk isn't to be found there", volume, node)
			}
			disk = m.disks[strings.ToLower(volume)]
			return nil
		},
		explain: func(ctx context.Context, f *fault) error { return b.explainAttach(ctx, volume, node, vm, f) },
	})
	if err != nil {
		return nil, err
	}
	return map[string]string{"type": blockContext()["type"], "diskUUID": disk}, nil
}

func (b *Backend) explainAttach(ctx context.Context, volume, node string, vm *machine, f *fault) error {
	text := strings.ToLower(f.text)
	switch {
	case f.has("ResourceInUse"):
		return b.inUse(ctx, volume, f)
	case wireKind(f) == controller.NotFound:
		v, err := b.find(ctx, volume)
		if err == nil && v == nil {
			return controller.Errorf(controller.NotFound, "volume %q doesn't exist: %w", volume, f)
		}
		return controller.Errorf(controller.NotFound, "attach of volume %s to node %s: %w", volume, node, f)
	case vm != nil && vm.slots <= 0, f.has("CnsMissingControllerFault"), strings.Contains(text, "scsi controller"), strings.Contains(text, "slot"):
		// kubernetes-sigs/vsphere-csi-driver#468, #2800
		return controller.Errorf(controller.Exhausted, "node %s (virtual machine %q) can't take another volume: %w", node, vm.name, f)
	}
	return failf(f, "attach of volume %s to node %s", volume, node)
}

// Detach implements controller.Backend.
//
// The VM is looked for by the node id alone: that a Kubernetes node is gone
// says nothing about the VM, kubernetes-sigs/vsphere-csi-driver#529. Only the
// vCenter's own "there is none" counts as gone; an error of the look-up never
// does, kubernetes-sigs/vsphere-csi-driver#1038.
func (b *Backend) Detach(ctx context.Context, volume, node string) (err error) {
	ctx, leave := b.enter(ctx)
	defer leave()
	defer b.metrics.observeCSI("detach-volume", time.Now(), &err)
	if !isUUID(volume) {
		return nil
	}
	if node != "" {
		return b.detach(ctx, volume, node)
	}
	ms, err := b.holders(ctx, volume)
	if err != nil {
		return err
	}
	for _, m := range ms {
		if err := b.detach(ctx, volume, m.uuid); err != nil {
			return err
		}
	}
	return nil
}

// detachDisk is the operation of a disk that leaves its VM without CNS.
const detachDisk = "detach-disk"

func (b *Backend) detach(ctx context.Context, volume, node string) error {
	var vm *machine
	unknown := false
	o := operation{
		subject: volumeKey(volume),
		name:    "detach-volume",
		params:  map[string]string{"node": node},
		look: func(ctx context.Context, _ *outcome) (bool, error) {
			vm = nil
			if isUUID(node) {
				var err error
				if vm, err = b.machine(ctx, node); err != nil {
					return false, err
				}
			}
			if vm == nil {
				return true, b.gone(ctx, volume, node)
			}
			_, has := vm.disks[strings.ToLower(volume)]
			return !has, nil
		},
		start: func(ctx context.Context, s *session) (types.ManagedObjectReference, error) {
			res, err := cnsmethods.CnsDetachVolume(ctx, s.cns, &cnstypes.CnsDetachVolume{This: volumeManager,
				DetachSpecs: []cnstypes.CnsVolumeAttachDetachSpec{{VolumeId: volumeID(volume), Vm: vm.ref}}})
			if err != nil {
				return types.ManagedObjectReference{}, err
			}
			return res.Returnval, nil
		},
		end: func(context.Context, cnstypes.BaseCnsVolumeOperationResult) error { return nil },
		explain: func(_ context.Context, f *fault) error {
			// The disk is still in the VM's hardware, whatever the fault says
			// about the volume: NotFound would pass for "detached" with some
			// callers.
			kind := wireKind(f)
			if kind == controller.NotFound {
				kind, unknown = controller.Internal, true
			}
			return controller.Errorf(kind, "detach of volume %s from node %s (virtual machine %q), which holds it: %w", volume, node, vm.name, f)
		},
	}
	err := b.do(ctx, o)
	if !unknown {
		return err
	}
	if v, ferr := b.find(ctx, volume); v != nil || ferr != nil {
		return err // something else was not found
	}
	// CNS has the volume no longer on record, and the VM has its disk: without
	// this it could never be detached, kubernetes-sigs/vsphere-csi-driver#1274.
	b.log.Warn("CNS doesn't know the volume: its disk is detached from the virtual machine itself", "volume", volume, "node", node, "error", err)
	o.name = detachDisk
	o.start = func(ctx context.Context, s *session) (types.ManagedObjectReference, error) {
		res, err := methods.DetachDisk_Task(ctx, s.vim, &types.DetachDisk_Task{This: vm.ref, DiskId: types.ID{Id: volume}})
		if err != nil {
			return types.ManagedObjectReference{}, err
		}
		return res.Returnval, nil
	}
	return b.do(ctx, o)
}

// gone answers for a node without a VM. Its disks went with it or were
// released; whoever holds the volume now was given it for another node.
func (b *Backend) gone(ctx context.Context, volume, node string) error {
	ms, err := b.holders(ctx, volume)
	if err != nil {
		return err
	}
	if len(ms) > 0 {
		b.log.Warn("detach for a node without a virtual machine: the volume is on another", "volume", volume, "node", node, "holder", describe(ms))
	}
	return nil
}
