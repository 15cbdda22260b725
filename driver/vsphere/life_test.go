package vsphere_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/csilab/csilab/driver/record"
	"github.com/csilab/csilab/sim/vcenter"
)

func TestLife(t *testing.T) {
	files, err := record.NewFile(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, vcenter.Config{Seed: 1, TLS: true}, func(o *options) { o.Records = files })
	r.records = files
	n1, n2 := r.vc.VMUUID("node-1"), r.vc.VMUUID("node-2")
	if err := r.backend.Probe(r.ctx); err != nil {
		t.Fatal(err)
	}
	vol := r.create("pvc-1")
	if again := r.create("pvc-1"); again != vol {
		t.Fatalf("second create made %s", again)
	}
	_, err = r.CreateVolume(r.ctx, createRequest("pvc-1", 2<<30))
	want(t, err, codes.AlreadyExists, vol)

	pc, err := r.publish(vol, n1)
	if err != nil {
		t.Fatal(err)
	}
	if len(pc["diskUUID"]) != 32 || pc["type"] != "vSphere CNS Block Volume" {
		t.Errorf("publish context %v", pc)
	}
	again, err := r.publish(vol, n1)
	if err != nil || again["diskUUID"] != pc["diskUUID"] {
		t.Errorf("second publish: %v, %v", again, err)
	}
	_, err = r.publish(vol, n2)
	want(t, err, codes.FailedPrecondition, "node-1", n1)
	want(t, r.delete(vol), codes.FailedPrecondition, "node-1", n1)
	if err := r.unpublish(vol, n2); err != nil {
		t.Errorf("unpublish from a node that doesn't have it: %v", err)
	}
	list, err := r.ListVolumes(r.ctx, &csi.ListVolumesRequest{})
	if err != nil || len(list.GetEntries()) != 1 {
		t.Fatalf("list %v, %v", list, err)
	}
	if ids := list.GetEntries()[0].GetStatus().GetPublishedNodeIds(); len(ids) != 1 || ids[0] != n1 {
		t.Errorf("published on %v, want %s", ids, n1)
	}
	got, err := r.ControllerGetVolume(r.ctx, &csi.ControllerGetVolumeRequest{VolumeId: vol})
	if err != nil || len(got.GetStatus().GetPublishedNodeIds()) != 1 || got.GetVolume().GetCapacityBytes() != 1<<30 {
		t.Errorf("get %v, %v", got, err)
	}

	exp, err := r.ControllerExpandVolume(r.ctx, &csi.ControllerExpandVolumeRequest{VolumeId: vol, CapacityRange: &csi.CapacityRange{RequiredBytes: 2<<30 - 5}})
	if err != nil || exp.GetCapacityBytes() != 2<<30 {
		t.Fatalf("expand %v, %v", exp, err)
	}
	snap, err := r.snapshot("snapshot-1", vol)
	if err != nil {
		t.Fatal(err)
	}
	if snap.GetSizeBytes() != 2<<30 || !snap.GetReadyToUse() || snap.GetCreationTime().AsTime().Year() < 2000 {
		t.Errorf("snapshot %v", snap)
	}
	same, err := r.snapshot("snapshot-1", vol)
	if err != nil || same.GetSnapshotId() != snap.GetSnapshotId() {
		t.Errorf("second snapshot: %v, %v", same, err)
	}
	_, err = r.ControllerExpandVolume(r.ctx, &csi.ControllerExpandVolumeRequest{VolumeId: vol, CapacityRange: &csi.CapacityRange{RequiredBytes: 3 << 30}})
	want(t, err, codes.FailedPrecondition, "snapshot")

	rq := createRequest("pvc-2", 2<<30)
	rq.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snap.GetSnapshotId()}}}
	clone, err := r.CreateVolume(r.ctx, rq)
	if err != nil || clone.GetVolume().GetContentSource() == nil {
		t.Fatalf("restore %v, %v", clone, err)
	}
	rq.Name, rq.CapacityRange.RequiredBytes = "pvc-3", 5<<30
	_, err = r.CreateVolume(r.ctx, rq)
	want(t, err, codes.OutOfRange)
	_, err = r.CreateVolume(r.ctx, createRequest("pvc-2", 2<<30))
	want(t, err, codes.AlreadyExists, "source")
	_, err = r.snapshot("snapshot-1", clone.GetVolume().GetVolumeId())
	want(t, err, codes.AlreadyExists, vol)

	want(t, r.delete(vol), codes.FailedPrecondition, "snapshot")
	for range 2 {
		if _, err := r.DeleteSnapshot(r.ctx, &csi.DeleteSnapshotRequest{SnapshotId: snap.GetSnapshotId()}); err != nil {
			t.Fatal(err)
		}
		if err := r.unpublish(vol, n1); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		for _, v := range []string{vol, clone.GetVolume().GetVolumeId()} {
			if err := r.delete(v); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := len(r.vc.Volumes()); n != 0 {
		t.Errorf("%d volumes left", n)
	}
	recs, err := r.records.List(r.ctx)
	if err != nil || len(recs) != 0 {
		t.Errorf("records left: %v, %v", recs, err)
	}
}
