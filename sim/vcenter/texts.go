package vcenter

import (
	"fmt"

	pbmtypes "github.com/vmware/govmomi/pbm/types"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
	"github.com/vmware/govmomi/vsan"
)

// Texts that clients match on: the upstream driver compares the first one to
// tell a wrong password from an outage (vsphere-csi-driver
// pkg/common/cns-lib/vsphere/virtualcenter.go), users search for the others.
const (
	textInvalidLogin     = "Cannot complete login due to an incorrect user name or password."
	textPasswordExpired  = "Password of the user logging on is expired." // Unverified: the exact text
	textNotAuthenticated = "The session is not authenticated."
	textNotFound         = "The object or item referred to could not be found."
	textInUse            = "The resource '%s' is in use."
	textInvalidArgument  = "A specified parameter was not correct: %s"
	textDeleted          = "The object '%s:%s' has already been deleted or has not been completely created"
	textNotSupported     = "The operation is not supported on the object."
	textNoPermission     = "Permission to perform this operation was denied."
	textMethodNotFound   = "The method is not found on the object."
	textCanceled         = "The request was canceled."
)

// localize gives a fault that vcsim left without a text the one that a
// vCenter sends. The endpoint of CNS has no texts for refusals of access, but
// the names of their types (vsphere-csi-driver#2157, #1668, #265).
func localize(namespace string, f *soap.Fault) *soap.Fault {
	if f.String != "" {
		return f
	}
	c := *f
	c.String = textOf(f.Detail.Fault)
	if namespace == vsan.Namespace {
		switch f.Detail.Fault.(type) {
		case *types.NotAuthenticated:
			c.String = "NotAuthenticated"
		case *types.NoPermission:
			c.String = "NoPermission"
		}
	}
	return &c
}

var powerNames = map[types.VirtualMachinePowerState]string{
	types.VirtualMachinePowerStatePoweredOn: "Powered on", types.VirtualMachinePowerStatePoweredOff: "Powered off", types.VirtualMachinePowerStateSuspended: "Suspended",
}

func textOf(fault any) string {
	switch x := fault.(type) {
	case *types.InvalidLogin:
		return textInvalidLogin
	case *types.PasswordExpired:
		return textPasswordExpired
	case *types.NotAuthenticated:
		return textNotAuthenticated
	case *types.NotFound:
		return textNotFound
	case *types.ResourceInUse:
		return fmt.Sprintf(textInUse, x.Name)
	case *pbmtypes.PbmResourceInUse:
		return fmt.Sprintf(textInUse, x.Name)
	case *pbmtypes.PbmDuplicateName:
		return fmt.Sprintf("The name '%s' already exists.", x.Name) // Unverified: the exact text
	case *types.InvalidArgument:
		return fmt.Sprintf(textInvalidArgument, x.InvalidProperty)
	case *types.ManagedObjectNotFound:
		return fmt.Sprintf(textDeleted, x.Obj.Type, x.Obj.Value)
	case *types.NotSupported:
		return textNotSupported
	case *types.NoPermission:
		return textNoPermission
	case *types.MethodNotFound:
		return textMethodNotFound
	case *types.InvalidPowerState:
		return fmt.Sprintf("The attempted operation cannot be performed in the current state (%s).", powerNames[x.ExistingState])
	case *types.InvalidState:
		return "The operation is not allowed in the current state."
	case *types.InvalidHostState:
		return "The operation is not allowed in the current state of the host."
	case *types.DuplicateName:
		return fmt.Sprintf("The name '%s' already exists.", x.Name)
	case *types.AlreadyExists:
		return fmt.Sprintf("The specified key, name, or identifier '%s' already exists.", x.Name)
	case *types.InvalidName:
		return fmt.Sprintf("The name '%s' is invalid.", x.Name)
	case *types.InvalidDeviceSpec:
		return fmt.Sprintf("Invalid configuration for device '%d'.", x.DeviceIndex)
	case *types.InvalidController:
		return fmt.Sprintf("Device '%d' is referring to a nonexisting controller '%d'.", x.DeviceIndex, x.ControllerKey)
	case *types.FileLocked:
		return fmt.Sprintf("Unable to access file %s since it is locked", x.File)
	case *types.FileNotFound:
		return fmt.Sprintf("File %s was not found", x.File)
	case *types.FileAlreadyExists:
		return fmt.Sprintf("Cannot complete the operation because the file or folder %s already exists", x.File)
	case *types.TaskInProgress:
		return "Another task is already in progress."
	case *types.HostNotConnected:
		return "Unable to communicate with the remote host, since it is disconnected."
	case *types.ConcurrentAccess:
		return "The operation failed because another operation has modified the object."
	case *types.RequestCanceled:
		return textCanceled
	}
	return fmt.Sprintf("%T", fault)
}
