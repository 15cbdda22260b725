package vcenter

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/csilab/csilab/sim/disk"
	core "github.com/csilab/csilab/sim/vcenter/cns"
)

func TestReconcile(t *testing.T) {
	const mb = 1 << 20
	store := disk.NewMemory()
	defer store.Close()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(store.Create("same", mb))
	must(store.Create("orphan", mb)) // a create that was not acknowledged
	must(store.Snapshot("orphan", "s"))
	must(store.Create("short", mb)) // an extension that the image has not seen
	must(store.Create("long", 3*mb))
	must(store.Create("snaps", mb))
	must(store.Snapshot("snaps", "kept"))
	must(store.Snapshot("snaps", "new")) // not acknowledged
	must(store.Create("loose", mb))
	must(store.Create("vmdk", mb))
	volume := func(id string, mbs int64, snaps ...string) core.Volume {
		v := core.Volume{Disk: core.Disk{ID: id, CapacityMB: mbs}}
		for _, s := range snaps {
			v.Snapshots = append(v.Snapshots, core.Snapshot{ID: s, Volume: id, Parent: "x"})
		}
		return v
	}
	s := &core.State{
		Volumes: []core.Volume{volume("same", 1), volume("deleting", 1), volume("short", 2), volume("long", 2), volume("snaps", 1, "gone", "kept"), {Disk: core.Disk{ID: "file:share", CapacityMB: 1}, Share: &core.Share{}}, {Disk: core.Disk{ID: "behind", CapacityMB: 1}, Lost: true}},
		Files:   []core.File{{ID: "vmdk"}, {ID: "vmdk-deleting"}},
		Disks:   []core.Disk{{ID: "loose", CapacityMB: 1}, {ID: "loose-deleting", CapacityMB: 1}},
		Attachments: []core.Attachment{
			{Volume: "same"}, {Volume: "deleting"},
		},
	}
	must(reconcile(s, store, slog.New(slog.DiscardHandler)))
	var ids []string
	for _, v := range s.Volumes {
		ids = append(ids, v.ID)
	}
	if want := []string{"same", "short", "long", "snaps", "file:share", "behind"}; !slices.Equal(ids, want) {
		t.Errorf("volumes %q, want %q", ids, want)
	}
	if len(s.Disks) != 1 || len(s.Files) != 1 || len(s.Attachments) != 1 || s.Volumes[2].CapacityMB != 3 {
		t.Errorf("state %+v", s)
	}
	if x := s.Volumes[3].Snapshots; len(x) != 1 || x[0].ID != "kept" || x[0].Parent != "" {
		t.Errorf("snapshots %+v", x)
	}
	var left []string
	for _, i := range store.List() {
		left = append(left, i.ID)
		if i.ID == "snaps" && !slices.Equal(i.Snapshots, []string{"kept"}) || i.ID == "short" && i.Size != 2*mb {
			t.Errorf("image %+v", i)
		}
	}
	if want := []string{"long", "loose", "same", "short", "snaps", "vmdk"}; !slices.Equal(left, want) {
		t.Errorf("images %q, want %q", left, want)
	}
}
