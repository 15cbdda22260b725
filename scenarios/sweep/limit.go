package sweep

import (
	"path"
	"strings"

	"github.com/csilab/csilab/sim/ledger"
)

// limit says why a real cluster does not come right by itself after a kind of
// trouble at a call; "" when it must. What is here is not the driver's to heal,
// and the simulated kubelet does what the real one does.
func limit(e ledger.Entry, kind string) string {
	if kind == "duplicate" && e.Hop == ledger.VCenter && (e.Op == "CnsCreateVolume" || e.Op == "CnsCreateSnapshots" || e.Op == "Login") {
		// A name is no key to CNS. Unverified: whether any proxy delivers a POST twice.
		return "each delivery makes another one at the vCenter, and its caller hears of one only"
	}
	if kind == "duplicate" && e.Hop == ledger.WSAPI && e.Op == "PUT /volumes/{name}" && strings.Contains(e.Request, `"action":3`) {
		// An array grows a volume by a size, not to it (WSAPI's growvv). The driver
		// reports the size that it has in the end.
		return "the array grows the volume once more with each delivery, and nobody asked for a size that would tell"
	}
	refused := kind == "error-retriable" || kind == "error-final" || kind == "error-after"
	if !refused || e.Hop != ledger.Host || e.Op != "Remove" || !strings.HasPrefix(e.Component, "kubelet@") {
		return ""
	}
	switch {
	case path.Base(e.Request) == "vol_data.json" && volumeOfPod(path.Dir(e.Request)):
		if kind == "error-after" {
			return "a kubelet that has removed vol_data.json and is told that it failed never unmounts the volume again, until it is restarted"
		}
	case volumeOfPod(e.Request):
		// kubernetes v1.37.2 pkg/volume/csi/csi_mounter.go, removeMountDir, removes
		// vol_data.json before the directory; csi_plugin.go, NewUnmounter, needs it.
		return "a kubelet that can't remove a volume's directory has removed vol_data.json already and never unmounts it again, until it is restarted"
	case strings.Contains(e.Request, "/plugins/kubernetes.io/csi/"):
		// csi_attacher.go, UnmountDevice: without a data file nothing is to be undone;
		// csi_block.go has the same order. Unverified: whether a later clean-up of the
		// real kubelet finds what stays.
		return "a kubelet that can't remove a staging directory leaves it: without vol_data.json it takes the volume for unstaged"
	}
	return ""
}

// volumeOfPod says whether a path is the directory of a CSI volume in a pod's.
func volumeOfPod(p string) bool {
	return path.Base(path.Dir(p)) == "kubernetes.io~csi" && strings.Contains(p, "/pods/")
}
