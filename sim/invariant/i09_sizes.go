package invariant

import (
	"fmt"
	"slices"
)

// fsShare is how much of its device a filesystem has at least, in percent: the
// rest is its own (tables, journal, log). One that was not grown after its
// device doubled has half.
const fsShare = 75

func init() {
	register(Invariant{
		ID:        "I9",
		Sentence:  "sizes agree: PVC status, backend, device, filesystem (where the kernel can't grow, the check is skipped with its reason, never passed)",
		WhenQuiet: true,
		Check: func(w *World) (out []string) {
			sizes(w, func(broken, _ string) {
				if broken != "" {
					out = append(out, broken)
				}
			})
			return out
		},
		Skip: func(w *World) (out []string) {
			sizes(w, func(_, skipped string) {
				if skipped != "" && !slices.Contains(out, skipped) {
					out = append(out, skipped)
				}
			})
			return out
		},
	})
}

// sizes compares the sizes of each volume from the claim down to the
// filesystem, and tells what is broken or can't be checked.
func sizes(w *World, tell func(broken, skipped string)) {
	backend := map[string]int64{}
	for _, v := range w.Volumes {
		backend[v.ID] = v.Bytes
	}
	growing := map[string]string{} // volume id -> condition
	for _, pv := range w.PVs {
		real := backend[pv.VolumeID]
		i := slices.IndexFunc(w.Claims, func(c Claim) bool { return c.PV == pv.Name })
		if i >= 0 {
			c := w.Claims[i]
			if c.Growing != "" {
				growing[pv.VolumeID] = c.Growing
				tell("", fmt.Sprintf("claim %s is %s, so that the sizes of volume %s may differ", c.Key, c.Growing, pv.VolumeID))
			}
			switch {
			case pv.Bytes == 0:
			case c.Bytes == c.Asked && c.Bytes < pv.Bytes:
				// What kubelet says after a growth is what was allocated, which is what
				// was asked for, and not what the backend made of it (kubernetes v1.37.2
				// pkg/volume/util/operationexecutor/node_expander.go).
			case c.Growing == "" && c.Bytes != pv.Bytes, c.Bytes > pv.Bytes:
				tell(fmt.Sprintf("claim %s has %d bytes, its PersistentVolume %s has %d", c.Key, c.Bytes, pv.Name, pv.Bytes), "")
			}
		}
		switch {
		case pv.Bytes == 0 || real == 0:
		case real < pv.Bytes:
			tell(fmt.Sprintf("PersistentVolume %s has %d bytes, volume %s on the backend only %d", pv.Name, pv.Bytes, pv.VolumeID, real), "")
		case !pv.Static && growing[pv.VolumeID] == "" && real >= pv.Bytes+max(1, w.Unit):
			tell(fmt.Sprintf("PersistentVolume %s has %d bytes, volume %s on the backend has %d", pv.Name, pv.Bytes, pv.VolumeID, real), "")
		}
	}
	for _, n := range w.Nodes {
		if n.Fenced {
			continue
		}
		for _, e := range w.Exports {
			size, ok := n.Sizes[e.Serial]
			if e.Node != n.Name || !ok || backend[e.VolumeID] == 0 || growing[e.VolumeID] != "" {
				continue
			}
			if size != backend[e.VolumeID] {
				tell(fmt.Sprintf("device %s on %s has %d bytes, its volume %s on the backend has %d", e.Serial, n.Name, size, e.VolumeID, backend[e.VolumeID]), "")
			}
		}
		for _, m := range n.Mounts {
			device := n.Sizes[m.Serial]
			if !m.Staging || m.VolumeID == "" || m.FSBytes == 0 || device == 0 || m.ReadOnly || m.Cut || growing[m.VolumeID] != "" {
				continue
			}
			why := n.CantGrow[m.FSType]
			switch {
			case m.FSBytes > device:
				tell(fmt.Sprintf("the %s at %s on %s has %d bytes, its device %s only %d", m.FSType, m.Path, n.Name, m.FSBytes, m.Serial, device), "")
			case m.FSBytes/fsShare >= device/100:
			case why != "":
				tell("", fmt.Sprintf("the %s of volume %s on %s has %d bytes of its device's %d, and can't be grown there: %s", m.FSType, m.VolumeID, n.Name, m.FSBytes, device, why))
			default:
				tell(fmt.Sprintf("the %s at %s on %s has %d bytes, its device %s has %d", m.FSType, m.Path, n.Name, m.FSBytes, m.Serial, device), "")
			}
		}
	}
}
