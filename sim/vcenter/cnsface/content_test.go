package cnsface_test

import (
	"testing"

	cnstypes "github.com/vmware/govmomi/cns/types"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/vcenter/cnsface"
)

// TestContent: a volume holds what was written, its snapshot what was there
// when it was taken, and a restored volume that.
func TestContent(t *testing.T) {
	t.Parallel()
	store := disk.NewMemory()
	defer store.Close()
	l := newLab(t, func(c *cnsface.Config) { c.Disks = store })
	write := func(id, s string) {
		t.Helper()
		img, err := store.Open(id)
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		if _, err := img.WriteAt([]byte(s), 4096); err != nil {
			t.Fatal(err)
		}
	}
	read := func(id string) string {
		t.Helper()
		img, err := store.Open(id)
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		b := make([]byte, 6)
		if _, err := img.ReadAt(b, 4096); err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	id := l.create("a", 1)
	write(id, "before")
	snap := l.ok(l.snapshot(id, "s")).(*cnstypes.CnsSnapshotCreateResult).Snapshot.SnapshotId
	write(id, "after!")
	s := l.spec("b", 1)
	s.VolumeSource = &cnstypes.CnsSnapshotVolumeSource{VolumeId: cnstypes.CnsVolumeId{Id: id}, SnapshotId: snap}
	restored := l.createSpec(s)
	if a, b := read(id), read(restored); a != "after!" || b != "before" {
		t.Errorf("volume has %q, restored one %q", a, b)
	}
	l.ok(l.deleteSnapshot(id, snap.Id))
	l.ok(l.extend(id, 2))
	if info, err := store.Stat(id); err != nil || info.Size != 2<<20 || read(id) != "after!" {
		t.Errorf("after extend %+v %v", info, err)
	}
	l.ok(l.delete(id))
	l.ok(l.delete(restored))
	if left := store.List(); len(left) != 0 {
		t.Errorf("images left: %+v", left)
	}
}
