package invariant_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/csilab/csilab/sim/invariant"
)

// healthy is a world with one pod that uses one volume, and a snapshot of it.
func healthy() *invariant.World {
	return &invariant.World{
		Quiet:       true,
		Volumes:     []invariant.Volume{{ID: "v1", Name: "pvc-1"}},
		Snapshots:   []invariant.Snapshot{{ID: "s1", VolumeID: "v1"}},
		Exports:     []invariant.Export{{VolumeID: "v1", Node: "n1", Serial: "6000c29a"}},
		PVs:         []invariant.PV{{Name: "pvc-1", VolumeID: "v1"}},
		Contents:    []invariant.SnapshotContent{{Name: "snapcontent-1", SnapshotID: "s1"}},
		Attachments: []invariant.Attachment{{Name: "csi-1", VolumeID: "v1", Node: "n1", Attached: true, Serial: "6000c29a"}},
		Pods:        []invariant.Pod{{Key: "default/p", UID: "u1", Node: "n1", VolumeIDs: []string{"v1"}}},
		Nodes: []invariant.Node{
			{Name: "n1", Disks: []string{"6000c29a"}, PodDirs: []string{"u1"}, Mounts: []invariant.Mount{
				{Path: "/var/lib/kubelet/plugins/x/globalmount", Serial: "6000c29a", VolumeID: "v1", Staging: true},
				{Path: "/var/lib/kubelet/pods/u1/volumes/y/mount", Serial: "6000c29a", VolumeID: "v1"}}},
			{Name: "n2"},
		},
		Formats:  []invariant.Format{{Node: "n1", Serial: "6000c29a", Tool: "mkfs.ext4"}},
		Promises: []invariant.Promise{{Call: "DeleteVolume", Subject: "v0"}},
		Reads:    []invariant.Read{{VolumeID: "v1", Where: "default/p", What: "/data/a", Want: "1", Got: "1"}},
	}
}

func TestHealthy(t *testing.T) {
	if v := invariant.Check(healthy()); len(v) != 0 {
		t.Fatalf("%v", v)
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
		{"I8", "other content", "written was", func(w *invariant.World) { w.Reads[0].Got = "2" }},
		{"I8", "unreadable", "EIO", func(w *invariant.World) { w.Reads[0].Err = errors.New("EIO") }},
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
			vs := invariant.Check(w)
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
	if v := invariant.Check(w); len(v) != 0 {
		t.Errorf("%v", v)
	}
}

func TestFencedNodeCountsAsGone(t *testing.T) {
	w := healthy()
	w.Nodes[1] = w.Nodes[0]
	w.Nodes[1].Name, w.Nodes[1].Fenced = "n2", true
	if v := invariant.Check(w); len(v) != 0 {
		t.Errorf("%v", v)
	}
}
