package vcenter

import (
	"fmt"

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
	case *types.RequestCanceled:
		return textCanceled
	}
	return fmt.Sprintf("%T", fault)
}
