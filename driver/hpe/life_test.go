package hpe_test

import (
	"encoding/json"
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A volume's life, with every call that it makes and what the calls say.
func TestLife(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	step := func(err error, calls ...string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if got := r.seen(); !reflect.DeepEqual(got, calls) {
			t.Errorf("calls:\n got %q\nwant %q", got, calls)
		}
	}
	v, err := r.create(t)
	if err != nil {
		t.Fatal(err)
	}
	if h := r.headers[2]; h.Get("x-auth-token") != "token-1" || h.Get("x-array-ip") != "192.0.2.9" || h.Get("Content-Type") != "application/json" {
		t.Errorf("headers %v", h)
	}
	wantBody := `{"name":"pvc-1","size":1073741824,"config":{"access_protocol":"iscsi","cpg":"cpg-1","host_sees_vlun":"true","multi_initiator":false}}`
	if r.bodies[2] != wantBody || r.bodies[0] != `{"username":"3paradm","password":"3pardata","array_ip":"192.0.2.9"}` {
		t.Errorf("bodies %q", r.bodies)
	}
	step(nil, "GET /volumes?name=pvc-1", "POST /volumes")
	if want := map[string]string{"accessProtocol": "iscsi", "cpg": "cpg-1", "hostSeesVLUN": "true", "fsType": "xfs", "multiInitiator": "false"}; !maps.Equal(v.GetVolumeContext(), want) || v.GetVolumeId() != "pvc-1" || v.GetCapacityBytes() != 1<<30 {
		t.Errorf("volume %v", v)
	}
	_, err = r.create(t)
	step(err, "GET /volumes?name=pvc-1")

	pc, err := r.publish(t, v)
	if got := r.bodies[1]; got != `{"name":"node-1","uuid":"u-1","iqns":["iqn.1994-05.com.redhat:1"],"networks":["192.0.2.50/24"],"access_protocol":"iscsi"}` {
		t.Errorf("host %s", got)
	}
	if got := r.bodies[2]; got != `{"host_uuid":"u-1","access_protocol":"iscsi"}` {
		t.Errorf("publish %s", got)
	}
	step(err, "GET /volumes/pvc-1", "POST /hosts", "PUT /volumes/pvc-1/actions/publish")
	if want := (map[string]string{"serialNumber": "60002ac0000000000000000100020003", "accessProtocol": "iscsi", "targetNames": "iqn.2000-05.com.3pardata:a,iqn.2000-05.com.3pardata:b",
		"targetScope": "group", "lunId": "0", "discoveryIps": "192.0.2.1,192.0.2.2", "readOnly": "false", "fsType": "xfs"}); !maps.Equal(pc, want) {
		t.Errorf("publish context %v", pc)
	}
	_, err = r.publish(t, v) // again
	step(err, "GET /volumes/pvc-1", "POST /hosts", "PUT /volumes/pvc-1/actions/publish")

	snap, err := r.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "snapshot-1", SourceVolumeId: "pvc-1", Secrets: r.secrets, Parameters: map[string]string{"description": "d", "readOnly": "true"}})
	if got := r.bodies[2]; got != `{"name":"snapshot-1","description":"d","volume_id":"pvc-1","config":{"read_only":"true"}}` {
		t.Errorf("snapshot %s", got)
	}
	step(err, "GET /volumes/pvc-1", "GET /snapshots?name=snapshot-1&volume_id=pvc-1", "POST /snapshots")
	if s := snap.GetSnapshot(); s.GetSnapshotId() != "snapshot-1" || s.GetSourceVolumeId() != "pvc-1" || s.GetSizeBytes() != 1<<30 || !s.GetReadyToUse() || s.GetCreationTime().GetSeconds() != 9 {
		t.Errorf("snapshot %v", s)
	}
	restored, err := r.create(t, func(q *csi.CreateVolumeRequest) {
		q.Name, q.CapacityRange = "pvc-2", nil
		q.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: "snapshot-1"}}}
	})
	if got := r.bodies[3]; !strings.HasPrefix(got, `{"name":"pvc-2","size":1073741824,"base_snapshot_id":"snapshot-1","clone":true,`) {
		t.Errorf("restore %s", got)
	}
	step(err, "GET /volumes?name=pvc-2", "GET /snapshots/snapshot-1", "GET /volumes/pvc-1", "POST /volumes")
	if restored.GetContentSource().GetSnapshot().GetSnapshotId() != "snapshot-1" || restored.GetCapacityBytes() != 1<<30 {
		t.Errorf("restored %v", restored)
	}
	cloned, err := r.create(t, func(q *csi.CreateVolumeRequest) {
		q.Name = "pvc-3"
		q.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "pvc-1"}}}
	})
	step(err, "GET /volumes?name=pvc-3", "GET /volumes/pvc-1", "GET /snapshots?name=snap-for-clone-pvc-3&volume_id=pvc-1", "POST /snapshots", "POST /volumes",
		"GET /snapshots?name=snap-for-clone-pvc-3&volume_id=pvc-1", "DELETE /snapshots/snap-for-clone-pvc-3")
	if cloned.GetContentSource().GetVolume().GetVolumeId() != "pvc-1" {
		t.Errorf("cloned %v", cloned)
	}
	exp, err := r.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: "pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: 2 << 30}, Secrets: r.secrets})
	if exp.GetCapacityBytes() != 2<<30 || !exp.GetNodeExpansionRequired() {
		t.Errorf("expanded %v", exp)
	}
	if got := r.bodies[1]; got != `{"id":"pvc-1","size":2147483648}` {
		t.Errorf("expand %s", got)
	}
	step(err, "GET /volumes/pvc-1", "PUT /volumes/pvc-1")

	del := func() error {
		_, err := r.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: "pvc-1", Secrets: r.secrets})
		return err
	}
	if err := del(); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("delete while published: %v", err)
	}
	r.seen()
	unpublish := &csi.ControllerUnpublishVolumeRequest{VolumeId: "pvc-1", NodeId: vanilla, Secrets: r.secrets}
	_, err = r.ControllerUnpublishVolume(ctx, unpublish)
	if got := r.bodies[0]; got != `{"host_uuid":"u-1"}` {
		t.Errorf("unpublish %s", got)
	}
	step(err, "PUT /volumes/pvc-1/actions/unpublish", "GET /volumes/pvc-1")
	// A volume that passes for unpublished is unpublished all the same, and what
	// is left then is nobody's that is known.
	_, err = r.ControllerUnpublishVolume(ctx, unpublish)
	step(err, "PUT /volumes/pvc-1/actions/unpublish")
	if err := del(); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "snapshot-1") {
		t.Errorf("delete with a snapshot: %v", err)
	}
	r.seen()
	_, err = r.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: "snapshot-1", Secrets: r.secrets})
	step(err, "DELETE /snapshots/snapshot-1")
	step(del(), "GET /volumes/pvc-1", "GET /snapshots?mode=exists&volume_id=pvc-1", "DELETE /volumes/pvc-1?force=false")
	step(del(), "GET /volumes/pvc-1")
	if recs, _ := r.records.List(ctx); len(recs) > 0 {
		t.Errorf("records left: %v", recs)
	}
	if r.logins != 1 {
		t.Errorf("%d logins", r.logins)
	}
	all, _ := json.Marshal(r.headers)
	if strings.Contains(string(all), "3pardata") {
		t.Error("the password is in a header")
	}
}
