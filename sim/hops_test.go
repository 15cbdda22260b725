package sim_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

// wholeLife has all that a volume goes through, on two nodes.
func wholeLife(ctx context.Context, t *testing.T, lab *sim.Lab) {
	t.Helper()
	sized := func(name, size string) *corev1.PersistentVolumeClaim {
		c := claim(name)
		c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse(size)
		return c
	}
	must(t, lab.Create(ctx, sized("data", "256Mi")))
	start(ctx, t, lab, "app", "node-1", "data")
	must(t, lab.Write(ctx, "app", "/data/a", "content"))
	must(t, lab.Expand(ctx, "data", "512Mi"))
	must(t, lab.Expanded(ctx, "data", "512Mi"))
	_, err := lab.TakeSnapshot(ctx, "cut", "data", "snap")
	must(t, err)
	copied := sized("copy", "512Mi")
	copied.Spec.DataSource = snapshotSource("cut")
	must(t, lab.Create(ctx, copied))
	start(ctx, t, lab, "second", "node-2", "copy")
	must(t, lab.Expect(ctx, "second", "/copy/a", "content"))
	restage(ctx, t, lab, "app", "node-2", "data")
	must(t, lab.Expect(ctx, "app", "/data/a", "content"))
	must(t, lab.DeletePod(ctx, "second"))
	must(t, lab.DeletePVC(ctx, "copy"))
	must(t, lab.DeleteSnapshot(ctx, "cut"))
	end(ctx, t, lab, "app", "data")
}

// about are the subjects that calls must tell, by hop and operation: v volume,
// n node, s snapshot.
var about = map[ledger.Hop]map[string]string{
	ledger.CSI: {
		"CreateVolume": "v", "DeleteVolume": "v", "ControllerPublishVolume": "vn", "ControllerUnpublishVolume": "vn", "ControllerExpandVolume": "v",
		"CreateSnapshot": "vs", "DeleteSnapshot": "s", "NodeStageVolume": "vn", "NodeUnstageVolume": "vn", "NodePublishVolume": "vn", "NodeUnpublishVolume": "vn",
		"NodeExpandVolume": "vn", "NodeGetInfo": "n", "NodeGetCapabilities": "n", "GetPluginInfo": "", "GetPluginCapabilities": "", "ControllerGetCapabilities": "", "Probe": "",
	},
	ledger.Registration: {"GetInfo": "n", "NotifyRegistrationStatus": "n"},
	ledger.Kube: {
		"create persistentvolumes": "v", "delete persistentvolumes": "v", "create volumeattachments": "vn", "update-status volumeattachments": "vn",
		"update-status pods": "n", "create volumesnapshots": "s", "create volumesnapshotcontents": "s", "create csinodes": "n",
	},
	ledger.Host: {"Mount": "n", "Unmount": "n", "exec mkfs.ext4": "n", "MkdirAll": "n"},
	ledger.VCenter: {
		"Login": "", "CnsCreateVolume": "v", "task:CnsCreateVolume": "v", "CnsAttachVolume": "vn", "task:CnsAttachVolume": "vn", "CnsDetachVolume": "vn", "task:CnsDetachVolume": "vn",
		"CnsExtendVolume": "v", "task:CnsExtendVolume": "v", "CnsCreateSnapshots": "v", "task:CnsCreateSnapshots": "v", "CnsDeleteSnapshots": "vs", "task:CnsDeleteSnapshots": "vs",
		"CnsDeleteVolume": "v", "task:CnsDeleteVolume": "v",
	},
	ledger.CSP: {
		"POST /tokens": "", "POST /hosts": "n", "POST /volumes": "v", "PUT /volumes/{id}/actions/publish": "vn", "PUT /volumes/{id}/actions/unpublish": "vn",
		"PUT /volumes/{id}": "v", "POST /snapshots": "vs", "DELETE /snapshots/{id}": "s", "DELETE /volumes/{id}": "v",
	},
	ledger.WSAPI: {
		"POST /credentials": "", "POST /hosts": "n", "POST /volumes": "v", "POST /vluns": "vn", "DELETE /vluns/{id}": "vn", "POST /volumes/{name}": "v", "DELETE /volumes/{name}": "v",
	},
}

// hopsOf are those of a backend.
func hopsOf(lab *sim.Lab) []ledger.Hop {
	hops := []ledger.Hop{ledger.CSI, ledger.Registration, ledger.Kube, ledger.Host}
	if lab.Backend() == sim.HPE {
		return append(hops, ledger.CSP, ledger.WSAPI)
	}
	return append(hops, ledger.VCenter)
}

// One life of a volume passes every hop, and the ledger tells of each call who
// made it, what it is about and how it ended.
func TestEveryHopIsSeen(t *testing.T) {
	eachBackend(t, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
		wholeLife(ctx, t, lab)
		seen := map[ledger.Hop]map[string]int{}
		for _, e := range lab.Ledger.Entries() {
			if seen[e.Hop] == nil {
				seen[e.Hop] = map[string]int{}
			}
			seen[e.Hop][e.Op]++
			if e.Component == "" {
				t.Errorf("nobody made %v", e)
			}
			if e.Outcome == ledger.Failed && e.Code == "" {
				t.Errorf("a refusal without its code: %v", e)
			}
			for _, s := range about[e.Hop][e.Op] {
				if got := map[rune]string{'v': e.Volume, 'n': e.Node, 's': e.Snapshot}[s]; got == "" && e.Component != "user" {
					t.Errorf("%v does not say its %c", e, s)
				}
			}
		}
		for _, h := range hopsOf(lab) {
			t.Logf("%s: %s", h, count(seen[h]))
			for op := range about[h] {
				if seen[h][op] == 0 && !strings.HasPrefix(op, "Probe") {
					t.Errorf("nobody has called %s on %s", op, h)
				}
			}
		}
	})
}

func count(ops map[string]int) string {
	var out []string
	for _, op := range slices.Sorted(maps.Keys(ops)) {
		out = append(out, fmt.Sprintf("%s %d", op, ops[op]))
	}
	return strings.Join(out, ", ")
}

// Rules act on each hop before a call and after it: its first matching call is
// held for a second, and the life goes on to its end.
func TestEachHopHasItsPhases(t *testing.T) {
	eachBackend(t, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
		for _, h := range hopsOf(lab) {
			for _, phase := range []fault.Phase{fault.Before, fault.After} {
				lab.Inject(fault.Rule{Name: fmt.Sprintf("%s %s", phase, h), Hop: h, Phase: phase, Nth: 3, Do: fault.Delay(time.Second)})
			}
		}
		lab.Crash("kubelet@node-1") // registers again
		lab.Crash("kubelet@node-2")
		time.Sleep(time.Minute)
		wholeLife(ctx, t, lab)
		must(t, lab.Unfired())
	})
}

// The codes of refusals are those of their protocols.
func TestCodesOfRefusals(t *testing.T) {
	eachBackend(t, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
		lab.Inject(fault.Rule{Name: "refused", Hop: ledger.CSI, Op: "CreateVolume", Nth: 1, Do: fault.Error(status.Error(codes.ResourceExhausted, "full"))})
		v := written(ctx, t, lab)
		must(t, lab.LoseVolume(ctx, v))
		must(t, lab.DeletePod(ctx, "app"))
		must(t, lab.DeletePVC(ctx, "data"))
		for _, e := range lab.Ledger.Entries(func(e ledger.Entry) bool { return e.Outcome == ledger.Failed || e.Outcome == ledger.Refused }) {
			if e.Code == "" {
				t.Errorf("no code: %v", e)
			}
		}
	})
}

func snapshotSource(name string) *corev1.TypedLocalObjectReference {
	group := snapshotv1.GroupName
	return &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: name}
}
