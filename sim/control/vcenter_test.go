package control_test

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/vmware/govmomi"
	"github.com/vmware/govmomi/cns"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/object"

	"github.com/csilab/csilab/sim/control"
	"github.com/csilab/csilab/sim/vcenter"
)

// TestWhatAClientMade: a client makes and attaches a volume, and the kinds of a
// vCenter show what the client was told.
func TestWhatAClientMade(t *testing.T) {
	ctx := t.Context()
	v, err := vcenter.New(ctx, vcenter.Config{Nodes: []vcenter.Node{{Name: "node-1"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	vc, err := govmomi.NewClient(ctx, v.URL(), true)
	if err != nil {
		t.Fatal(err)
	}
	defer vc.CloseIdleConnections()
	cc, err := cns.NewClient(ctx, vc.Client)
	if err != nil {
		t.Fatal(err)
	}
	defer cc.CloseIdleConnections()
	result := func(task *object.Task, err error) cnstypes.BaseCnsVolumeOperationResult {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		info, err := task.WaitForResult(ctx)
		if err != nil {
			t.Fatal(err)
		}
		r := info.Result.(cnstypes.CnsVolumeOperationBatchResult).VolumeResults[0]
		if f := r.GetCnsVolumeOperationResult().Fault; f != nil {
			t.Fatalf("%T: %s", f.Fault, f.LocalizedMessage)
		}
		return r
	}
	id := result(cc.CreateVolume(ctx, []cnstypes.CnsVolumeCreateSpec{{
		Name: "pvc-1", VolumeType: "BLOCK",
		Metadata:             cnstypes.CnsVolumeMetadata{ContainerCluster: cnstypes.CnsContainerCluster{ClusterType: "KUBERNETES", ClusterId: "k1", VSphereUser: "u", ClusterFlavor: "VANILLA"}},
		BackingObjectDetails: &cnstypes.CnsBlockBackingDetails{CnsBackingObjectDetails: cnstypes.CnsBackingObjectDetails{CapacityInMb: 100}},
	}})).GetCnsVolumeOperationResult().VolumeId
	vm, err := object.NewSearchIndex(vc.Client).FindByUuid(ctx, nil, v.VMUUID("node-1"), true, nil)
	if err != nil || vm == nil {
		t.Fatal(vm, err)
	}
	uuid := result(cc.AttachVolume(ctx, []cnstypes.CnsVolumeAttachDetachSpec{{VolumeId: id, Vm: vm.Reference()}})).(*cnstypes.CnsVolumeAttachResult).DiskUUID

	token := control.NewToken()
	s := httptest.NewServer(control.Handler(token, []control.Source{{Name: "vc-1", VCenter: v}}, nil, nil))
	defer s.Close()
	c := control.Client{URL: s.URL, Token: token, HTTP: s.Client()}
	for kind, want := range map[string]map[string]any{
		"volumes":     {"vcenter": "vc-1", "id": id.Id, "name": "pvc-1", "type": "BLOCK", "capacityMB": 100.0, "clusters": []any{"k1"}, "snapshots": 0.0, "nodes": []any{"node-1"}},
		"attachments": {"vcenter": "vc-1", "volume": id.Id, "name": "pvc-1", "node": "node-1", "vm": vm.Reference().Value, "diskUUID": strings.ReplaceAll(uuid, "-", ""), "controller": 1000.0, "bus": 0.0},
		"tasks":       {"vcenter": "vc-1", "op": "CnsCreateVolume", "state": "success", "volume": "pvc-1"},
		"sessions":    {"vcenter": "vc-1", "kind": "SOAP", "running": 0.0},
		"datastores":  {"vcenter": "vc-1", "type": "VMFS", "accessible": true, "volumes": 1.0},
	} {
		b, err := c.Get(ctx, kind, "")
		if err != nil {
			t.Fatal(err)
		}
		var l control.List[map[string]any]
		if err := json.Unmarshal(b, &l); err != nil || len(l.Items) == 0 {
			t.Fatalf("%s: %v, %s", kind, err, b)
		}
		for field, x := range want {
			got, _ := json.Marshal(l.Items[0][field])
			if w, _ := json.Marshal(x); string(got) != string(w) {
				t.Errorf("%s: %s is %s, want %s", kind, field, got, w)
			}
		}
		var out strings.Builder
		if err := control.Table(&out, kind, b, time.Now()); err != nil || strings.Count(out.String(), "\n") != len(l.Items)+1 {
			t.Errorf("%s: %v\n%s", kind, err, out.String())
		}
	}
}
