package invariant_test

import (
	"strings"
	"testing"
	"time"

	"github.com/csilab/csilab/sim/invariant"
	"github.com/csilab/csilab/sim/ledger"
)

// calls are those that led to the healthy world: a detach by force is one.
var calls = invariant.Record{
	{Seq: 1, Hop: ledger.Kube, Op: "delete volumeattachments", Component: "attachdetach-controller", Request: "csi-0 by force: timeout", Outcome: ledger.OK},
	{Seq: 2, Hop: ledger.Kube, Op: "delete volumeattachments", Component: "attachdetach-controller", Request: "csi-0", Outcome: ledger.OK},
	{Seq: 3, Hop: ledger.CSI, Op: "NodeStageVolume", Component: "kubelet@n1", Volume: "v1", Outcome: ledger.OK},
}

// healthy is a world with one pod that uses one volume, and a snapshot of it.
func healthy() *invariant.World {
	return &invariant.World{
		Quiet:       true,
		Unit:        1 << 20,
		Volumes:     []invariant.Volume{{ID: "v1", Name: "pvc-1", Bytes: 64 << 20}},
		Snapshots:   []invariant.Snapshot{{ID: "s1", VolumeID: "v1"}},
		Exports:     []invariant.Export{{VolumeID: "v1", Node: "n1", Serial: "6000c29a"}},
		PVs:         []invariant.PV{{Name: "pvc-1", VolumeID: "v1", Bytes: 64 << 20}},
		Claims:      []invariant.Claim{{Key: "default/data", PV: "pvc-1", Bytes: 64 << 20}},
		Contents:    []invariant.SnapshotContent{{Name: "snapcontent-1", SnapshotID: "s1"}},
		Attachments: []invariant.Attachment{{Name: "csi-1", VolumeID: "v1", Node: "n1", Attached: true, Serial: "6000c29a"}},
		Pods:        []invariant.Pod{{Key: "default/p", UID: "u1", Node: "n1", VolumeIDs: []string{"v1"}}},
		Nodes: []invariant.Node{
			{Name: "n1", Disks: []string{"6000c29a"}, Sizes: map[string]int64{"6000c29a": 64 << 20}, PodDirs: []string{"u1"}, Mounts: []invariant.Mount{
				{Path: "/var/lib/kubelet/plugins/x/globalmount", Serial: "6000c29a", VolumeID: "v1", Staging: true, FSType: "ext4", FSBytes: 60 << 20},
				{Path: "/var/lib/kubelet/pods/u1/volumes/y/mount", Serial: "6000c29a", VolumeID: "v1"}}},
			{Name: "n2"},
		},
		Formats:  []invariant.Format{{Node: "n1", Serial: "6000c29a", Tool: "mkfs.ext4"}},
		Promises: []invariant.Promise{{Call: "DeleteVolume", Subject: "v0"}},
		Detaches: []invariant.Detach{{VolumeID: "v1", Node: "n2", Seq: 2, Mounted: []string{"/a"}, Forced: 1}},
		Healing:  &invariant.Healing{Seq: 1, Took: 30 * time.Second, Bound: time.Minute, Calls: 1, PerMinute: 1},
		Reads:    []invariant.Read{{VolumeID: "v1", Where: "default/p", What: "/data/a", Want: "1", Got: "1"}},
	}
}

func TestHealthy(t *testing.T) {
	if v := invariant.Check(healthy(), calls); len(v) != 0 {
		t.Fatalf("%v", v)
	}
}

// A claim that has grown says what was asked for, also where the backend has
// made more of it; one that says less than that is behind.
func TestGrownToMoreThanAsked(t *testing.T) {
	w := healthy()
	w.Claims[0].Bytes, w.Claims[0].Asked = 63<<20+1, 63<<20+1
	if v := invariant.Check(w, calls); len(v) != 0 {
		t.Errorf("%v", v)
	}
	w.Claims[0].Bytes = 63 << 20
	if v := invariant.Check(w, calls); len(v) != 1 || v[0].ID != "I9" {
		t.Errorf("%v", v)
	}
}

// Each invariant is broken in at least two ways, and nothing else is with it.
func TestBroken(t *testing.T) {
	broken := map[string]int{}
	for _, tc := range []struct {
		id, name, detail string
		breakIt          func(*invariant.World)
	}{
		{"I1", "exported twice", "n1 and n2", func(w *invariant.World) {
			w.Exports = append(w.Exports, invariant.Export{VolumeID: "v1", Node: "n2", Serial: "6000c29a"})
			w.Attachments = append(w.Attachments, invariant.Attachment{VolumeID: "v1", Node: "n2"})
		}},
		{"I1", "mounted twice", "mounted read-write", func(w *invariant.World) {
			w.Nodes[1].Mounts = w.Nodes[0].Mounts
			w.Pods = append(w.Pods, invariant.Pod{UID: "u2", Node: "n2", VolumeIDs: []string{"v1"}})
		}},
		{"I2", "orphan volume", "has no PersistentVolume", func(w *invariant.World) {
			w.Volumes = append(w.Volumes, invariant.Volume{ID: "v2", Name: "pvc-2"})
		}},
		{"I2", "duplicate name", "one name", func(w *invariant.World) {
			w.Volumes = append(w.Volumes, invariant.Volume{ID: "v2", Name: "pvc-1"})
			w.PVs = append(w.PVs, invariant.PV{VolumeID: "v2"})
		}},
		{"I2", "orphan snapshot", "VolumeSnapshotContent", func(w *invariant.World) { w.Contents = nil }},
		{"I3", "staged another device", "published as", func(w *invariant.World) { w.Nodes[0].Mounts[0].Serial = "6000ffff" }},
		{"I3", "published another device", "published as", func(w *invariant.World) { w.Nodes[0].Mounts[1].Serial = "6000ffff" }},
		{"I4", "ext4 over data", "mkfs.ext4", func(w *invariant.World) { w.Formats[0].HadData = true }},
		{"I4", "xfs over data", "mkfs.xfs", func(w *invariant.World) {
			w.Formats = append(w.Formats, invariant.Format{Tool: "mkfs.xfs", HadData: true})
		}},
		{"I5", "delete", "still there", func(w *invariant.World) { w.Promises[0].StillThere = "the volume is still there" }},
		{"I5", "unpublish", "on the VM", func(w *invariant.World) {
			w.Promises = append(w.Promises, invariant.Promise{Call: "ControllerUnpublishVolume", StillThere: "the disk is on the VM"})
		}},
		{"I6", "mounted", "had it mounted at /a", func(w *invariant.World) { w.Detaches[0].Forced = 0 }},
		{"I6", "nobody forced it", "did not force that", func(w *invariant.World) { w.Detaches[0].Forced = 2 }},
		{"I6", "still reached", "reading works", func(w *invariant.World) { w.Detaches[0].Reaches = "reading works" }},
		{"I7", "takes too long", "not quiet 2m0s after", func(w *invariant.World) { w.Healing.Took = 2 * time.Minute }},
		{"I7", "by hand", "kubelet@n1", func(w *invariant.World) { w.Healing.ByHand = []string{"kubelet@n1"} }},
		{"I7", "too many calls", "kubelet@n1 made 1 calls csi/NodeStageVolume about v1", func(w *invariant.World) {
			w.Healing.Calls, w.Healing.PerMinute = -1, 0
		}},
		{"I8", "other content", "written was", func(w *invariant.World) { w.Reads[0].Got = "2" }},
		{"I8", "unreadable", "EIO", func(w *invariant.World) { w.Reads[0].Err = "EIO" }},
		{"I9", "claim behind", "claim default/data has 33554432 bytes", func(w *invariant.World) { w.Claims[0].Bytes = 32 << 20 }},
		{"I9", "claim ahead", "its PersistentVolume pvc-1 has", func(w *invariant.World) { w.Claims[0].Bytes, w.Claims[0].Growing = 65<<20, "Resizing" }},
		{"I9", "backend behind", "on the backend only", func(w *invariant.World) { w.Volumes[0].Bytes = 32 << 20; w.Nodes[0].Sizes = nil }},
		{"I9", "backend ahead", "on the backend has", func(w *invariant.World) { w.Volumes[0].Bytes = 65 << 20; w.Nodes[0].Sizes = nil }},
		{"I9", "device behind", "device 6000c29a on n1 has", func(w *invariant.World) { w.Nodes[0].Sizes["6000c29a"] = 63 << 20 }},
		{"I9", "filesystem not grown", "the ext4 at", func(w *invariant.World) { w.Nodes[0].Mounts[0].FSBytes = 32 << 20 }},
		{"I9", "filesystem beyond its device", "only", func(w *invariant.World) { w.Nodes[0].Mounts[0].FSBytes = 65 << 20 }},
		{"I10", "export without attachment", "without a VolumeAttachment", func(w *invariant.World) { w.Attachments = nil }},
		{"I10", "attachment stuck", "left over", func(w *invariant.World) { w.Attachments[0].Deleting = true }},
		{"I10", "disk without export", "plugged into n2", func(w *invariant.World) { w.Nodes[1].Disks = []string{"6000c29b"} }},
		{"I10", "staging path without pod", "still mounted", func(w *invariant.World) { w.Pods[0].VolumeIDs = nil }},
		{"I10", "directory of an old pod", "u0", func(w *invariant.World) { w.Nodes[0].PodDirs = append(w.Nodes[0].PodDirs, "u0") }},
		{"I10", "counted by the lab", "session", func(w *invariant.World) { w.Leaks = []string{"a session of the vCenter"} }},
	} {
		t.Run(tc.id+" "+tc.name, func(t *testing.T) {
			w := healthy()
			tc.breakIt(w)
			vs := invariant.Check(w, calls)
			if len(vs) == 0 || !strings.Contains(vs[0].String(), tc.detail) {
				t.Errorf("got %v, want a violation of %s with %q", vs, tc.id, tc.detail)
			}
			for _, v := range vs {
				if v.ID != tc.id {
					t.Errorf("also broken: %v", v)
				}
			}
		})
		broken[tc.id]++
	}
	for _, i := range invariant.All() {
		if broken[i.ID] < 2 {
			t.Errorf("%s is broken by %d tests, want 2", i.ID, broken[i.ID])
		}
	}
}

func TestNotQuiet(t *testing.T) {
	w := healthy()
	w.Quiet = false
	w.Contents, w.Attachments = nil, nil // on their way
	if v := invariant.Check(w, calls); len(v) != 0 {
		t.Errorf("%v", v)
	}
}

func TestFencedNodeCountsAsGone(t *testing.T) {
	w := healthy()
	w.Nodes[1] = w.Nodes[0]
	w.Nodes[1].Name, w.Nodes[1].Fenced = "n2", true
	if v := invariant.Check(w, calls); len(v) != 0 {
		t.Errorf("%v", v)
	}
}

// What a node that was force-detached still has mounted leads nowhere; the next
// node may have the volume.
func TestForceDetachedCountsAsFenced(t *testing.T) {
	w := healthy()
	w.Nodes[1] = w.Nodes[0]
	w.Nodes[1].Name, w.Nodes[1].Disks, w.Nodes[1].PodDirs = "n2", nil, nil
	w.Nodes[1].Mounts = []invariant.Mount{w.Nodes[0].Mounts[0]}
	w.Nodes[1].Mounts[0].Cut, w.Nodes[1].Mounts[0].Serial = true, ""
	w.Pods = append(w.Pods, invariant.Pod{Key: "default/q", UID: "u2", Node: "n2", VolumeIDs: []string{"v1"}})
	if v := invariant.Check(w, calls); len(v) != 0 {
		t.Errorf("%v", v)
	}
}

// What can't be compared is skipped, and says so.
func TestSizesSkipped(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*invariant.World)
		want   string
	}{
		"the kernel can't grow it": {func(w *invariant.World) {
			w.Nodes[0].Mounts[0].FSBytes = 32 << 20
			w.Nodes[0].CantGrow = map[string]string{"ext4": "the kernel refuses"}
		}, "can't be grown there: the kernel refuses"},
		"the claim is on its way": {func(w *invariant.World) {
			w.Claims[0].Growing, w.Claims[0].Bytes = "FileSystemResizePending", 32<<20
			w.Nodes[0].Mounts[0].FSBytes = 32 << 20
		}, "claim default/data is FileSystemResizePending"},
	} {
		w := healthy()
		tc.change(w)
		if v := invariant.Check(w, calls); len(v) != 0 {
			t.Errorf("%s: %v", name, v)
		}
		if s := invariant.Skips(w); len(s) != 1 || s[0].ID != "I9" || !strings.Contains(s[0].Reason, tc.want) {
			t.Errorf("%s: skipped %v, want %q", name, s, tc.want)
		}
	}
	if s := invariant.Skips(healthy()); len(s) != 0 {
		t.Errorf("skipped in a healthy world: %v", s)
	}
}

func TestApplying(t *testing.T) {
	w := healthy()
	all := invariant.Applying(w)
	if len(all) != 10 || all[0] != "I1" || all[9] != "I10" {
		t.Errorf("in a quiet world %v", all)
	}
	w.Quiet = false
	if some := invariant.Applying(w); len(some) != 7 {
		t.Errorf("in one that is not %v", some)
	}
}
