package scenarios

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:      "expand-while-the-link-is-down",
		Text:      "a replicated volume is to grow while its arrays don't reach each other: it keeps its size on both however often it is tried, and has what was asked for on both, and no more, once they do, although an answer is lost then",
		Labels:    []string{"expand", "replication", "lost-reply"},
		Incidents: []string{"H26 hpe-storage/csi-driver release notes v3.0.0 (CON-3329), v3.1.0 (CON-3165)"},
		Backends:  onArray,
		Options:   func(o *sim.Options) { o.Arrays = 2 },
		Flow:      expandLinkDown,
		Mutation:  "a resizer that asks for more each time that it is refused",
		MutateOptions: func(o *sim.Options) {
			var more atomic.Int64
			o.AlterCSI = func(_ string, req any) any {
				r, ok := req.(*csi.ControllerExpandVolumeRequest)
				if !ok {
					return req
				}
				r = proto.CloneOf(r)
				r.CapacityRange.RequiredBytes += more.Add(256 << 20)
				return r
			}
		},
	})
}

// replicated is a class of volumes that are on two arrays.
func replicated(l *sim.Lab) *storagev1.StorageClass {
	yes := true
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "replicated"}, Provisioner: l.DriverName(), AllowVolumeExpansion: &yes,
		Parameters: l.Parameters(map[string]string{"csi.storage.k8s.io/fstype": "ext4", "replicationDevices": "pair", "oneRcgPerPvc": "true"})}
}

// sizesMiB are those of a claim's volume on each array that has it.
func sizesMiB(l *sim.Lab, pvc string) (out []int64, err error) {
	_, v, err := l.ArrayVolume(pvc)
	if err != nil {
		return nil, err
	}
	for _, a := range l.SAN().Arrays() {
		for _, x := range a.Volumes() {
			if x.WWN == v.WWN {
				out = append(out, x.SizeMiB)
			}
		}
	}
	return out, nil
}

func expandLinkDown(ctx context.Context, l *sim.Lab) error {
	c := claim("data", "replicated", "256Mi")
	san := l.SAN()
	one, two := san.Arrays()[0].Name(), san.Arrays()[1].Name()
	both := func(mib int64) error {
		got, err := sizesMiB(l, "data")
		if err == nil && (len(got) != 2 || got[0] != mib || got[1] != mib) {
			err = fmt.Errorf("the volume has %v MiB on its arrays, want twice %d: %w", got, mib, errUnexpected)
		}
		return err
	}
	var from uint64
	return steps(
		func() error { return l.Create(ctx, replicated(l), c) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error { return l.Create(ctx, pod("app", l.Nodes()[0], c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/data/a", "on both") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, l.PVName("data")) },
		func() error { return both(256) },
		func() error { return san.LinkDown(one, two, true) },
		func() error { from = uint64(l.Ledger.Len()); return l.Expand(ctx, "data", "512Mi") },
		func() error {
			return l.Until(ctx, "the expansion was tried three times", func() bool {
				n := 0
				for _, e := range l.Ledger.Entries(ledger.After(from), ledger.OnHop(ledger.CSI, "ControllerExpandVolume")) {
					if e.Outcome != ledger.Pending {
						n++
					}
				}
				return n >= 3
			})
		},
		func() error { return noteEvent(l, "while the link is down", c, "VolumeResizeFailed") },
		func() error { return both(256) },
		func() error {
			l.Inject(fault.Rule{Name: "the answer to the growth is lost", Hop: ledger.WSAPI, Op: "PUT /volumes/{name}", Phase: fault.After, OnlySuccess: true, Nth: 1, Do: fault.Drop()})
			return san.LinkDown(one, two, false)
		},
		func() error { return l.BackendSize(ctx, "data", "512Mi") },
		func() error {
			return l.Until(ctx, "both arrays have the size", func() bool { return both(512) == nil })
		},
		func() error { return l.Create(ctx, pod("app", l.Nodes()[0], c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expanded(ctx, "data", "512Mi") },
		func() error { return filesystemSize(l, ctx, "app", "/data", "512Mi") },
		func() error { return l.Expect(ctx, "app", "/data/a", "on both") },
		func() error { return both(512) },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.Empty(ctx) },
	)
}
