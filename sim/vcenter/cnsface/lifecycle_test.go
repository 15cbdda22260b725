package cnsface_test

import (
	"regexp"
	"strings"
	"testing"

	cnstypes "github.com/vmware/govmomi/cns/types"
	vim "github.com/vmware/govmomi/vim25/types"
)

var dashed = regexp.MustCompile(`^6000c29[0-9a-f]-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

func TestLifecycle(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	r := l.ok(l.tryCreate(l.spec("pvc-1", 64)))
	cr, ok := r.(*cnstypes.CnsVolumeCreateResult)
	if !ok || cr.Name != "pvc-1" || len(cr.PlacementResults) != 1 || cr.PlacementResults[0].Datastore != l.ds[0].Reference() {
		t.Fatalf("create result %#v", r)
	}
	id := cr.VolumeId.Id
	if got := l.disks.sizes()[id]; got != 64<<20 {
		t.Fatalf("image has %d bytes", got)
	}

	ar, ok := l.ok(l.attach(id, l.vms[0])).(*cnstypes.CnsVolumeAttachResult)
	if !ok || !dashed.MatchString(ar.DiskUUID) {
		t.Fatalf("attach result %#v", ar)
	}
	d := l.disksOf(l.vms[0])[id]
	if d == nil || d.CapacityInBytes != 64<<20 || d.UnitNumber == nil {
		t.Fatalf("the VM shows %#v", d)
	}
	b := d.Backing.(*vim.VirtualDiskFlatVer2BackingInfo)
	if b.Uuid != ar.DiskUUID || b.DiskMode != "persistent" {
		t.Fatalf("backing %#v, attach said %s", b, ar.DiskUUID)
	}
	if got := l.nodes.list(); len(got) != 1 || !strings.HasSuffix(got[0], " "+strings.ReplaceAll(ar.DiskUUID, "-", "")+" "+id) {
		t.Fatalf("plugged %q", got)
	}
	if as := l.face.Attachments(); len(as) != 1 || as[0].Volume != id || as[0].VM != l.vms[0].Reference().Value {
		t.Fatalf("attachments %+v", as)
	}

	l.ok(l.extend(id, 128))
	if d := l.disksOf(l.vms[0])[id]; d.CapacityInBytes != 128<<20 || l.nodes.resized != 1 {
		t.Fatalf("after extend the VM shows %d bytes, %d rescans", d.CapacityInBytes, l.nodes.resized)
	}

	res, err := l.cns.QueryVolume(l.ctx, &cnstypes.CnsQueryFilter{VolumeIds: []cnstypes.CnsVolumeId{{Id: id}}})
	if err != nil || len(res.Volumes) != 1 {
		t.Fatalf("query: %v, %+v", err, res)
	}
	v := res.Volumes[0]
	if v.Name != "pvc-1" || v.VolumeType != "BLOCK" || v.HealthStatus != "green" || v.DatastoreUrl == "" || v.Metadata.ContainerCluster.ClusterId != "k1" {
		t.Fatalf("volume %+v", v)
	}
	if bd := v.BackingObjectDetails.(*cnstypes.CnsBlockBackingDetails); bd.CapacityInMb != 128 || bd.BackingDiskId != id || bd.BackingDiskUrlPath == "" {
		t.Fatalf("backing %+v", bd)
	}

	l.ok(l.detach(id, l.vms[0]))
	if d := l.disksOf(l.vms[0])[id]; d != nil || len(l.nodes.list()) != 0 || len(l.face.Attachments()) != 0 {
		t.Fatal("detach left something")
	}
	l.ok(l.delete(id))
	if len(l.disks.sizes()) != 0 || len(l.face.Volumes()) != 0 {
		t.Fatal("delete left something")
	}
}
