package invariant

import (
	"fmt"
	"slices"
)

func init() {
	register(Invariant{
		ID:        "I10",
		Sentence:  "nothing leaks: sessions, host entries, exports, disks, staging and publish paths, loop devices, goroutines",
		WhenQuiet: true,
		Check: func(w *World) (out []string) {
			for _, e := range w.Exports {
				if !slices.ContainsFunc(w.Attachments, func(a Attachment) bool { return a.VolumeID == e.VolumeID && a.Node == e.Node }) &&
					!slices.ContainsFunc(w.Volumes, func(v Volume) bool { return v.ID == e.VolumeID && v.Unmanaged }) {
					out = append(out, fmt.Sprintf("volume %s is exported to %s without a VolumeAttachment", e.VolumeID, e.Node))
				}
			}
			for _, a := range w.Attachments {
				if a.Deleting || !slices.ContainsFunc(w.PVs, func(p PV) bool { return p.VolumeID == a.VolumeID }) {
					out = append(out, fmt.Sprintf("VolumeAttachment %s (%s on %s) is left over", a.Name, a.VolumeID, a.Node))
				}
			}
			for _, n := range w.Nodes {
				if n.Fenced {
					continue
				}
				for _, d := range n.Disks {
					if !slices.ContainsFunc(w.Exports, func(e Export) bool { return e.Node == n.Name && e.Serial == d }) {
						out = append(out, fmt.Sprintf("disk %s is plugged into %s, but nothing is exported as it", d, n.Name))
					}
				}
				for _, m := range n.Mounts {
					if m.VolumeID != "" && !slices.ContainsFunc(w.Pods, func(p Pod) bool { return p.Node == n.Name && slices.Contains(p.VolumeIDs, m.VolumeID) }) {
						out = append(out, fmt.Sprintf("%s on %s is still mounted, no pod there uses volume %s", m.Path, n.Name, m.VolumeID))
					}
				}
				for _, uid := range n.PodDirs {
					if !slices.ContainsFunc(w.Pods, func(p Pod) bool { return p.UID == uid && p.Node == n.Name }) {
						out = append(out, fmt.Sprintf("the volume directory of pod %s is left on %s", uid, n.Name))
					}
				}
			}
			return append(out, w.Leaks...)
		},
	})
}
