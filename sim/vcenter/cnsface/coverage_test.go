package cnsface

import (
	"reflect"
	"testing"

	"github.com/vmware/govmomi/cns/methods"
)

// TestAllMethods: every method of govmomi's cns/methods is one of ours, by the
// bodies that the package has.
func TestAllMethods(t *testing.T) {
	t.Parallel()
	bodies := []any{
		methods.CnsCreateVolumeBody{}, methods.CnsUpdateVolumeBody{}, methods.CnsDeleteVolumeBody{}, methods.CnsExtendVolumeBody{},
		methods.CnsAttachVolumeBody{}, methods.CnsDetachVolumeBody{}, methods.CnsQueryVolumeBody{}, methods.CnsQueryVolumeInfoBody{},
		methods.CnsQueryAllVolumeBody{}, methods.CnsRelocateVolumeBody{}, methods.CnsConfigureVolumeACLsBody{}, methods.CnsQueryAsyncBody{},
		methods.CnsCreateSnapshotsBody{}, methods.CnsDeleteSnapshotBody{}, methods.CnsQuerySnapshotsBody{}, methods.CnsReconfigVolumePolicyBody{},
		methods.CnsSyncDatastoreBody{}, methods.CnsSyncVolumeBody{}, methods.CnsUnregisterVolumeBody{}, methods.CnsSetVolumeControlFlagsBody{},
		methods.CnsClearVolumeControlFlagsBody{}, methods.CnsUpdateVolumeCryptoBody{},
	}
	for _, b := range bodies {
		f, _ := reflect.TypeOf(b).FieldByName("Req")
		req := f.Type
		name := req.Elem().Name()
		found := false
		for _, o := range []any{&manager{}, &debugManager{}} {
			if m, ok := reflect.TypeOf(o).MethodByName(name); ok && m.Type.In(m.Type.NumIn()-1) == req {
				found = true
			}
		}
		if !found {
			t.Errorf("no %s", name)
		}
	}
}
