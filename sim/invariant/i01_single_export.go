package invariant

import (
	"fmt"
	"slices"
	"strings"
)

func init() {
	register(Invariant{
		ID:       "I1",
		Sentence: "a volume that isn't multi-writer is exported to at most one node, and mounted read-write on at most one; a node that was force-detached counts as fenced",
		Check: func(w *World) (out []string) {
			exported, mounted := map[string][]string{}, map[string][]string{}
			add := func(m map[string][]string, volume, node string) {
				if volume != "" && !w.multiWriter(volume) && !slices.Contains(m[volume], node) {
					m[volume] = append(m[volume], node)
				}
			}
			for _, e := range w.Exports {
				add(exported, e.VolumeID, e.Node)
			}
			for _, n := range w.Nodes {
				for _, m := range n.Mounts {
					if !n.Fenced && !m.Cut && !m.ReadOnly {
						add(mounted, m.VolumeID, n.Name)
					}
				}
			}
			for _, v := range sorted(exported) {
				if len(exported[v]) > 1 {
					out = append(out, fmt.Sprintf("volume %s is exported to %s", v, strings.Join(exported[v], " and ")))
				}
			}
			for _, v := range sorted(mounted) {
				if len(mounted[v]) > 1 {
					out = append(out, fmt.Sprintf("volume %s is mounted read-write on %s", v, strings.Join(mounted[v], " and ")))
				}
			}
			return out
		},
	})
}
