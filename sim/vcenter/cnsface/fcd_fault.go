package cnsface

import (
	"errors"
	"fmt"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// fcdFault maps a refusal of the core, or a failure of disks or hardware, to
// the fault of the VStorageObjectManager's methods. CNS says the same in its
// own faults (see wire). The methods' documented faults are FileFault,
// InvalidDatastore, InvalidState, NotFound and, of RegisterDisk, AlreadyExists
// (VSLM API reference).
func fcdFault(err error) *vim.LocalizedMethodFault {
	var w *wireError
	var te *taskError
	var e *cns.Error
	switch {
	case errors.As(err, &te):
		return te.fault
	case errors.As(err, &w):
		return w.fault
	case !errors.As(err, &e):
		return local(&vim.SystemError{Reason: err.Error()}, err.Error())
	}
	switch e.Kind {
	case cns.NotFound, cns.SnapshotNotFound:
		return local(&vim.NotFound{}, textNotFound)
	case cns.AlreadyRegistered:
		// The name is the id of the disk: the upstream driver takes it from there
		// (vsphere-csi-driver pkg/common/cns-lib/vsphere, IsAlreadyExists).
		return local(&vim.AlreadyExists{Name: e.Holder}, fmt.Sprintf("The specified key, name, or identifier '%s' already exists.", e.Holder))
	case cns.FileNotFound:
		f := &vim.FileNotFound{}
		f.File = e.Value
		return local(f, fmt.Sprintf("File %s was not found", e.Value))
	case cns.FileExists:
		f := &vim.FileAlreadyExists{}
		f.File = e.Value
		return local(f, fmt.Sprintf("Cannot complete the operation because the file or folder %s already exists", e.Value))
	case cns.InvalidPath:
		return local(&vim.InvalidDatastorePath{DatastorePath: e.Value}, fmt.Sprintf("Invalid datastore path '%s'.", e.Value))
	case cns.Attached, cns.Pinned, cns.HasSnapshots, cns.Untracked, cns.InvalidState:
		return local(&vim.InvalidState{}, textInvalidState)
	case cns.Limit:
		return local(&vim.InvalidState{}, e.Reason)
	case cns.SameDatastore:
		return local(&vim.InvalidArgument{InvalidProperty: "spec.backingSpec.datastore"}, "A specified parameter was not correct: spec.backingSpec.datastore")
	case cns.NoSpace, cns.Inaccessible, cns.Maintenance, cns.OnHold, cns.Incompatible, cns.NoSlot, cns.NoController, cns.Busy, cns.HostDown:
		return cause(e)
	}
	return wire("", err)
}

func fcdSOAPFault(err error) *soap.Fault {
	f := fcdFault(err)
	return simulator.Fault(f.LocalizedMessage, f.Fault)
}
