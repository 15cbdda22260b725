package cnsface

import (
	"errors"
	"fmt"
	"strconv"

	cnstypes "github.com/vmware/govmomi/cns/types"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// Texts that clients and users match on. Those quoted in public issues of
// kubernetes-sigs/vsphere-csi-driver: in use #1175, InvalidState #1590, the
// reasons of a CnsFault #217, #221 and #468.
const (
	textInUse        = "The resource 'volume' is in use."
	textNotFound     = "The object or item referred to could not be found."
	textInvalidState = "The operation is not allowed in the current state."
	textNotSupported = "The operation is not supported on the object."
	textNoController = "CNS: Failed to attach disk because missing SCSI controller"
)

func local(f vim.BaseMethodFault, text string) *vim.LocalizedMethodFault {
	return &vim.LocalizedMethodFault{Fault: f, LocalizedMessage: text}
}

func invalid(property string) *vim.LocalizedMethodFault {
	return local(&vim.InvalidArgument{InvalidProperty: property}, "A specified parameter was not correct: "+property)
}

func gone(ref vim.ManagedObjectReference) *vim.LocalizedMethodFault {
	return local(&vim.ManagedObjectNotFound{Obj: ref},
		fmt.Sprintf("The object 'vim.%s:%s' has already been deleted or has not been completely created", ref.Type, ref.Value))
}

// cnsFault is CNS's own fault for what its lower layers refused: the cause is
// in the fault and, by name, in the reason.
func cnsFault(what string, cause *vim.LocalizedMethodFault) *vim.LocalizedMethodFault {
	f := &cnstypes.CnsFault{Reason: "CNS: " + what}
	if cause != nil {
		f.FaultCause = cause
		if cause.Fault != nil {
			f.Reason += fmt.Sprintf(":Fault cause: vim.fault.%s", faultName(cause.Fault))
		}
	}
	return local(f, "CnsFault error: "+f.Reason)
}

func faultName(f vim.BaseMethodFault) string {
	s := fmt.Sprintf("%T", f)
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] == '.' {
			return s[i+1:]
		}
	}
	return s
}

// failing is what CNS says has failed, by API method.
var failing = map[string]string{
	"CnsCreateVolume":    "Failed to create disk",
	"CnsDeleteVolume":    "Failed to delete disk",
	"CnsAttachVolume":    "Failed to attach disk when calling AttachDisk",
	"CnsDetachVolume":    "Failed to detach disk when calling DetachDisk",
	"CnsExtendVolume":    "Failed to extend disk",
	"CnsCreateSnapshots": "Failed to create snapshot",
	"CnsDeleteSnapshots": "Failed to delete snapshot",

	"CnsRelocateVolume":       "Failed to relocate disk",
	"CnsReconfigVolumePolicy": "Failed to update the policy of the disk",
	"CnsUnregisterVolume":     "Failed to unregister volume",
	"CnsSyncVolume":           "Failed to sync volume",
	"CnsUpdateVolumeCrypto":   "Failed to update the encryption of the disk",
}

// wire maps a refusal of the core, or a failure of disks or hardware, to the
// fault that the API method reports for the volume.
func wire(op string, err error) *vim.LocalizedMethodFault {
	var w *wireError
	if errors.As(err, &w) {
		return w.fault
	}
	var e *cns.Error
	if !errors.As(err, &e) {
		return cnsFault(failing[op], local(&vim.SystemError{Reason: err.Error()}, err.Error()))
	}
	switch e.Kind {
	case cns.NotFound:
		return local(&vim.NotFound{}, textNotFound)
	case cns.SnapshotNotFound:
		if op == "CnsDeleteSnapshots" {
			return local(&vim.NotFound{}, textNotFound) // what drivers take for deleted
		}
		return local(&cnstypes.CnsSnapshotNotFoundFault{
			CnsFault: cnstypes.CnsFault{Reason: e.Error()}, VolumeId: volumeID(e.Holder), SnapshotId: cnstypes.CnsSnapshotId{Id: e.Value},
		}, "CnsSnapshotNotFoundFault error: "+e.Reason)
	case cns.NotFoundObject:
		return gone(vim.ManagedObjectReference{Type: "Datastore", Value: e.Value})
	case cns.InUse:
		return local(&vim.ResourceInUse{Name: "volume"}, textInUse)
	case cns.InvalidArgument:
		return invalid(e.Field)
	case cns.AlreadyExists:
		return local(&cnstypes.CnsVolumeAlreadyExistsFault{CnsFault: cnstypes.CnsFault{Reason: e.Reason}, VolumeId: volumeID(e.Value)},
			"CnsVolumeAlreadyExistsFault error: "+e.Reason)
	case cns.AlreadyRegistered:
		return local(&cnstypes.CnsAlreadyRegisteredFault{CnsFault: cnstypes.CnsFault{Reason: e.Reason}, VolumeId: volumeID(e.Holder)},
			"CnsAlreadyRegisteredFault error: "+e.Reason)
	case cns.NotRegistered:
		// kubernetes-sigs/vsphere-csi-driver#3788 handles it of every operation.
		return local(&cnstypes.CnsNotRegisteredFault{CnsFault: cnstypes.CnsFault{Reason: e.Reason}, VolumeId: volumeID(e.Value)},
			"CnsNotRegisteredFault error: "+e.Reason)
	case cns.SameDatastore:
		return local(&vim.AlreadyExists{Name: e.Holder}, fmt.Sprintf("The specified key, name, or identifier '%s' already exists.", e.Holder))
	case cns.InvalidState:
		return local(&vim.InvalidState{}, textInvalidState)
	case cns.NotSupported:
		return local(&vim.NotSupported{}, textNotSupported)
	}
	if e.Kind == cns.NoSlot {
		// CNS finds this out itself; vCenters of today say it in a
		// CnsMissingControllerFault, which govmomi v0.56.0 can't decode
		// (kubernetes-sigs/vsphere-csi-driver#468, #2800).
		return local(&cnstypes.CnsFault{Reason: textNoController}, "CnsFault error: "+textNoController)
	}
	// The rest is CNS's own fault around what the layer below said.
	// Unverified: the exact causes.
	return cnsFault(failing[op], cause(e))
}

func cause(e *cns.Error) *vim.LocalizedMethodFault {
	switch e.Kind {
	case cns.NoSpace:
		return local(&vim.NoDiskSpace{Datastore: e.Holder}, fmt.Sprintf("Insufficient disk space on datastore '%s'.", e.Holder))
	case cns.Inaccessible:
		f := &vim.InaccessibleDatastore{}
		f.Name = e.Holder
		return local(f, fmt.Sprintf("Datastore '%s' is not accessible.", e.Holder))
	case cns.Incompatible:
		return local(&vim.NotSupported{}, e.Reason)
	case cns.Maintenance, cns.OnHold:
		return local(&vim.InvalidDatastoreState{DatastoreName: e.Holder}, "Operation cannot be performed due to the current state of the datastore.")
	case cns.NoController:
		f := &vim.InvalidController{}
		if n, err := strconv.ParseInt(e.Value, 10, 32); err == nil {
			f.ControllerKey = int32(n)
		}
		return local(f, fmt.Sprintf("Device '0' is referring to a nonexisting controller '%d'.", f.ControllerKey))
	case cns.NoSlot:
		return local(&vim.MissingController{}, "The virtual machine is missing a SCSI controller with a free slot.")
	case cns.Pinned:
		// kubernetes-sigs/vsphere-csi-driver#478
		return local(&vim.InvalidDeviceSpec{}, "Invalid configuration for device '0'.")
	case cns.Busy:
		f := &vim.TaskInProgress{Task: vim.ManagedObjectReference{Type: "Task", Value: e.Holder}}
		return local(f, "Another task is already in progress.")
	case cns.HostDown:
		return local(&vim.HostNotConnected{}, "Unable to communicate with the remote host, since it is disconnected.")
	case cns.FileNotFound:
		f := &vim.FileNotFound{}
		f.File = e.Value
		return local(f, fmt.Sprintf("File %s was not found", e.Value))
	case cns.HasSnapshots, cns.Limit, cns.Untracked:
		return local(&vim.InvalidState{}, e.Reason)
	}
	return local(&vim.SystemError{Reason: e.Error()}, e.Error())
}

// wireError is a refusal that the face makes itself.
type wireError struct{ fault *vim.LocalizedMethodFault }

func (e *wireError) Error() string {
	return faultName(e.fault.Fault) + ": " + e.fault.LocalizedMessage
}

func volumeID(id string) cnstypes.CnsVolumeId { return cnstypes.CnsVolumeId{Id: id} }
