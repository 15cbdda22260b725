package vcenter

import (
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/nearest"
)

// emptyFault is the name of a fault that has no type and no text
// (vsphere-csi-driver reads its fields all the same).
const emptyFault = "EmptyFault"

// cnsTasks are the methods of CNS that start a task, cnsCalls those that don't.
var (
	cnsTasks = []string{"CnsAttachVolume", "CnsConfigureVolumeACLs", "CnsCreateSnapshots", "CnsCreateVolume", "CnsDeleteSnapshots", "CnsDeleteVolume",
		"CnsDetachVolume", "CnsExtendVolume", "CnsQueryAsync", "CnsQuerySnapshots", "CnsQueryVolumeInfo", "CnsReconfigVolumePolicy", "CnsRelocateVolume",
		"CnsSyncDatastore", "CnsSyncVolume", "CnsUnregisterVolume", "CnsUpdateVolumeCrypto", "CnsUpdateVolumeMetadata"}
	cnsCalls = []string{"CnsQueryAllVolume", "CnsQueryVolume", "CnsSetVolumeControlFlags", "CnsClearVolumeControlFlags"}
	// vimCalls are those that drivers make; any other method is taken too.
	vimCalls = []string{"Login", "LoginByToken", "Logout", "RetrieveServiceContent", "RetrievePropertiesEx", "WaitForUpdatesEx", "CancelWaitForUpdates",
		"CreateFilter", "CreateContainerView", "CreateListView", "ModifyListView", "DestroyView", "FindByUuid", "FindAllByUuid",
		"PbmRetrieveServiceContent", "PbmQueryProfile", "PbmRetrieveContent", "PbmCheckCompatibility"}
	vimTasks = []string{"AttachDisk_Task", "DetachDisk_Task", "PowerOnVM_Task", "PowerOffVM_Task", "ReconfigVM_Task", "RelocateVM_Task", "Destroy_Task"}
	// knownFaults are those that a storage driver meets; any other type of fault
	// is taken too.
	knownFaults = []string{emptyFault, "HTTP503", "CnsFault", "CnsVolumeNotFoundFault", "CnsVolumeAlreadyExistsFault", "CnsNotRegisteredFault", "CnsAlreadyRegisteredFault",
		"CnsSnapshotNotFoundFault", "CnsSnapshotCreatedFault", "NotFound", "ResourceInUse", "InvalidState", "InvalidPowerState", "InvalidArgument", "InvalidDatastore",
		"InvalidLogin", "NotAuthenticated", "NoPermission", "PasswordExpired", "NotSupported", "AlreadyExists", "DuplicateName", "FileNotFound", "FileLocked", "FileFault",
		"NoDiskSpace", "TaskInProgress", "ConcurrentAccess", "HostNotConnected", "HostCommunication", "ManagedObjectNotFound", "RequestCanceled",
		"SystemError", "InvalidRequest", "TooManyDevices", "GenericVmConfigFault", "RuntimeFault", "Timedout", "SnapshotFault", "StorageDrsCannotMoveDiskInMultiWriterMode"}
)

func init() {
	for _, ops := range [][]string{cnsTasks, vimTasks} {
		for _, op := range ops {
			fault.RegisterOps(ledger.VCenter, op, fault.TaskPrefix+op)
		}
	}
	fault.RegisterOps(ledger.VCenter, cnsCalls...)
	fault.RegisterOps(ledger.VCenter, vimCalls...)
	for _, m := range []string{"GET", "POST", "PATCH", "PUT", "DELETE"} {
		fault.RegisterOps(ledger.VCenter, m+" /rest/*", m+" /api/*")
	}
	fault.RegisterOps(ledger.VCenter, "POST /sts/*")
	fault.AcceptOps(ledger.VCenter, isMethod)
	fault.RegisterErrors(fault.Protocol{
		Doc:     "the type of a fault of vim25, CNS, PBM or VSLM, " + emptyFault + " for a fault without type and text, or HTTP and a status for the answer of a proxy before a service that is down",
		Codes:   func() []string { return slices.Sorted(slices.Values(knownFaults)) },
		Make:    makeError,
		Typical: typical,
	}, ledger.VCenter)
}

// namespaces of the types that govmomi knows.
var namespaces = []string{"", "pbm:", "vslm:", "vsan:"}

// isMethod says whether the APIs have a method of a name, or a task of one.
func isMethod(op string) bool {
	name, ofTask := strings.CutPrefix(op, fault.TaskPrefix)
	if ofTask && !strings.HasSuffix(name, "_Task") {
		return false // those of CNS are listed
	}
	for _, prefix := range namespaces {
		if t, ok := types.TypeFunc()(prefix + name); ok && t.Kind() == reflect.Struct {
			if f, ok := t.FieldByName("This"); ok && f.Type == reflect.TypeFor[types.ManagedObjectReference]() {
				return true
			}
		}
	}
	return false
}

// makeError makes a fault from the name of its type.
func makeError(op string, s fault.ErrorSpec) (error, error) {
	ofTask := strings.HasPrefix(op, fault.TaskPrefix)
	if s.Status != 0 {
		return nil, fault.Wrong("status", "write it as the code: HTTP%d", s.Status)
	}
	if n, ok := strings.CutPrefix(s.Code, "HTTP"); ok {
		status, err := strconv.Atoi(n)
		switch {
		case err != nil || status < 400 || status > 599 || http.StatusText(status) == "":
			return nil, fault.Wrong("code", "%q: %q is no status of an error; e.g. HTTP503", s.Code, n)
		case ofTask:
			return nil, fault.Wrong("code", "%q: a task fails with a fault", s.Code)
		case s.Message != "":
			return nil, fault.Wrong("message", "a status has no text of its own")
		}
		return &HTTPError{status}, nil
	}
	if s.Code == emptyFault {
		return &Fault{Message: s.Message}, nil
	}
	for _, prefix := range namespaces {
		if t, ok := types.TypeFunc()(prefix + s.Code); ok && t.Kind() == reflect.Struct {
			if f, ok := reflect.New(t).Interface().(types.BaseMethodFault); ok {
				return &Fault{Fault: f, Message: s.Message}, nil
			}
		}
	}
	return nil, fault.Wrong("code", "%q is no type of a fault%s", s.Code, nearest.Name(s.Code, knownFaults))
}

// typical are faults that pass by themselves. NotFound and the like would be
// lies about what is there, as NotAuthenticated about a session that lives on.
func typical(op string) []string {
	switch {
	case strings.HasPrefix(op, fault.TaskPrefix):
		return []string{"CnsFault", "ResourceInUse", emptyFault}
	case strings.HasPrefix(op, "Login"), op == "RetrieveServiceContent":
		return []string{"SystemError", "HTTP503"}
	case strings.Contains(op, " /"):
		return []string{"HTTP503"}
	}
	return []string{"SystemError", "HTTP503"}
}
