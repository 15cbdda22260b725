package invariant

import "fmt"

func init() {
	register(Invariant{
		ID:       "I3",
		Sentence: "a node reads and writes only the device whose serial equals the one in its publish context",
		Check: func(w *World) (out []string) {
			for _, n := range w.Nodes {
				for _, m := range n.Mounts {
					if m.VolumeID == "" || m.Serial == "" || n.Fenced || m.Cut {
						continue
					}
					for _, a := range w.Attachments {
						if a.VolumeID == m.VolumeID && a.Node == n.Name && a.Serial != "" && a.Serial != m.Serial {
							out = append(out, fmt.Sprintf("%s on %s is device %s, but volume %s was published as %s", m.Path, n.Name, m.Serial, m.VolumeID, a.Serial))
						}
					}
				}
			}
			return out
		},
	})
}
