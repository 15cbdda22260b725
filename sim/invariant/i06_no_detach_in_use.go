package invariant

import (
	"fmt"
	"strings"

	"github.com/csilab/csilab/sim/ledger"
)

// ForceDetach is what the record of a call says that deletes a VolumeAttachment
// of a node which may have the volume mounted still.
const ForceDetach = "by force"

func init() {
	register(Invariant{
		ID:       "I6",
		Sentence: "no detach while the node still has the volume mounted, unless the node is fenced or the control plane force-detached; from that commit on the node's I/O to the volume fails",
		Check: func(w *World) (out []string) {
			for _, d := range w.Detaches {
				if len(d.Mounted) > 0 && !d.Fenced && d.Forced == 0 {
					out = append(out, fmt.Sprintf("volume %s was detached from %s (call %d), which had it mounted at %s", d.VolumeID, d.Node, d.Seq, strings.Join(d.Mounted, " and ")))
				}
				if d.Reaches != "" {
					out = append(out, fmt.Sprintf("volume %s was detached from %s (call %d), but there %s", d.VolumeID, d.Node, d.Seq, d.Reaches))
				}
			}
			return out
		},
		// A detach by force has its cause in the ledger.
		OfCalls: func(w *World, calls Calls) (out []string) {
			for _, d := range w.Detaches {
				if len(d.Mounted) == 0 || d.Fenced || d.Forced == 0 {
					continue
				}
				e, ok := calls.Get(d.Forced)
				switch {
				case !ok: // let go of by the ledger's limit
				case e.Hop != ledger.Kube || e.Op != "delete volumeattachments" || e.Component != "user" && !strings.Contains(e.Request, ForceDetach):
					out = append(out, fmt.Sprintf("volume %s was detached from %s, which had it mounted, and call %d did not force that: %v", d.VolumeID, d.Node, d.Forced, e))
				}
			}
			return out
		},
	})
}
