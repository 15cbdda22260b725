package invariant

import (
	"fmt"
	"maps"
	"slices"
)

func init() {
	register(Invariant{
		ID:        "I2",
		Sentence:  "every backend volume and snapshot has an owner object, is retained by policy, is unmanaged by us, or is being deleted: no orphan, no duplicate for one name",
		WhenQuiet: true,
		Check: func(w *World) (out []string) {
			names := map[string]string{}
			for _, v := range w.Volumes {
				if other, ok := names[v.Name]; ok && v.Name != "" {
					out = append(out, fmt.Sprintf("volumes %s and %s have the one name %q", other, v.ID, v.Name))
				}
				names[v.Name] = v.ID
				owned := slices.ContainsFunc(w.PVs, func(p PV) bool { return p.VolumeID == v.ID })
				if !owned && !v.Unmanaged && !v.Retained && !v.Deleting {
					out = append(out, fmt.Sprintf("volume %s (%s) has no PersistentVolume", v.ID, v.Name))
				}
			}
			for _, s := range w.Snapshots {
				owned := slices.ContainsFunc(w.Contents, func(c SnapshotContent) bool { return c.SnapshotID == s.ID })
				if !owned && !s.Unmanaged && !s.Retained && !s.Deleting {
					out = append(out, fmt.Sprintf("snapshot %s of volume %s has no VolumeSnapshotContent", s.ID, s.VolumeID))
				}
			}
			return out
		},
	})
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
