package scenarios

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/wsapi"
)

var onArray = []string{sim.HPE}

func init() {
	register(Scenario{
		Name:   "lun-reused",
		Text:   "an administrator takes a volume from a node that uses it, and its LUN number goes to the next volume while the node still has the old paths; the next volume is staged on paths of its own, and no byte of one gets into the other",
		Labels: []string{"K35", "incident", "attach", "stage", "lun"},
		Incidents: []string{"K35 kubernetes/kubernetes#59946", "K35 kubernetes/kubernetes#90982",
			"H06 hpe-storage/csi-driver release notes v2.1.1 (CON-2445, CON-2446); hpe-storage/common-host-libs#168"},
		Backends: onArray,
		Flow:     lunReused,
		Mutation: "a NodeStageVolume that takes what it finds for the volume",
		Mutate:   func(l *sim.Lab) { l.Inject(stageLies) },
	})
	register(Scenario{
		Name:      "array-busy",
		Text:      "the array is too busy to export (503, code 270): some times the storage provider gets through, when it lasts the attacher does; each volume is exported once",
		Labels:    []string{"attach", "fault", "busy"},
		Incidents: []string{"H19 hpe-storage/csi-driver release notes v3.2.0 (CON-4609, CON-4471)"},
		Backends:  onArray,
		Flow:      arrayBusy,
		Mutation:  "a ControllerPublishVolume that answers OK and exports nothing",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "attach lies", Hop: ledger.CSI, Op: "ControllerPublishVolume", Do: fault.Skip()})
		},
	})
	register(Scenario{
		Name:     "session-key-expired",
		Text:     "the array ends the storage provider's session before each kind of call (403, code 6); it logs in again and nobody else notices",
		Labels:   []string{"session", "fault"},
		Backends: onArray,
		Flow:     keyExpired,
		Mutation: "a DeleteVolume that answers OK and leaves the volume",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "delete lies", Hop: ledger.CSI, Op: "DeleteVolume", Do: fault.Skip()})
		},
	})
	register(Scenario{
		Name:     "provider-restarted",
		Text:     "the storage provider is killed in the middle of each operation: its tokens are gone, what it knows is on the array, and nothing is done twice",
		Labels:   []string{"session", "crash", "fault"},
		Backends: onArray,
		Flow:     providerRestarted,
		Mutation: "a storage provider that answers OK to an unpublish and leaves the exports",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "unpublish lies", Hop: ledger.CSP, Op: l.Operations().Detach, Do: fault.Skip()})
		},
	})
	register(Scenario{
		Name:          "clone-while-copied",
		Text:          "a claim is cloned from another whose content takes a while to copy: the clone waits until it is whole, and holds what was there when it was asked for",
		Labels:        []string{"clone", "provision"},
		Backends:      onArray,
		Options:       func(o *sim.Options) { o.CopyMiBs = 1 }, // MiB/s: for minutes, until the flow says else
		Flow:          cloneWhileCopied,
		Mutation:      "a provisioner that forgets the source of a clone",
		MutateOptions: forgetSource,
	})
	register(Scenario{
		Name:     "import",
		Text:     "a virtual volume that is on the array already becomes a claim's volume: it is renamed, its old exports go, and its data stays",
		Labels:   []string{"provision", "import"},
		Backends: onArray,
		Flow:     imported,
		Mutation: "a DeleteVolume that answers OK and leaves the volume",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "delete lies", Hop: ledger.CSI, Op: "DeleteVolume", Do: fault.Skip()})
		},
	})
}

// stageLies lets a stage answer OK without having happened.
var stageLies = fault.Rule{Name: "stage lies", Hop: ledger.CSI, Op: "NodeStageVolume", Do: fault.Skip()}

// lun is the number that a claim's volume has on a node.
func lun(l *sim.Lab, pvc, node string) (int, error) {
	for _, x := range l.LUNs(node) {
		if x.VolumeID == l.VolumeID(pvc) {
			return x.LUN, nil
		}
	}
	return 0, fmt.Errorf("%s is not exported to %s: %w", pvc, node, errUnexpected)
}

func lunReused(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	one, two := claim("one", "fast", "256Mi"), claim("two", "fast", "256Mi")
	number := 0
	return steps(
		func() error { return l.Create(ctx, one, two) },
		func() error { _, err := l.Bound(ctx, "one"); return err },
		func() error { _, err := l.Bound(ctx, "two"); return err },
		// The second has data already, from the other node.
		func() error { return l.Create(ctx, pod("before", l.OtherNode(a), two)) },
		func() error { _, err := l.Running(ctx, "before"); return err },
		func() error { return l.Write(ctx, "before", "/two/a", "of the second volume") },
		func() error { return l.DeletePod(ctx, "before") },
		func() error { return l.Detached(ctx, l.PVName("two")) },
		func() error { return l.Create(ctx, pod("app", a, one)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/one/a", "of the first volume") },
		func() (err error) { number, err = lun(l, "one", a); return err },
		func() error { return l.PullDisk(ctx, a, "one") },
		func() error { return l.Create(ctx, pod("next", a, two)) },
		func() error { _, err := l.Running(ctx, "next"); return err },
		func() error {
			n, err := lun(l, "two", a)
			if err == nil && n != number {
				err = fmt.Errorf("the second volume has LUN %d, the first had %d: %w", n, number, errUnexpected)
			}
			return err
		},
		func() error {
			if err := l.Write(ctx, "app", "/one/b", "to nowhere, not to the other"); err == nil {
				return step(errUnexpected, "a pod writes and syncs to a volume that its node does not have")
			}
			return nil
		},
		func() error { return l.Expect(ctx, "next", "/two/a", "of the second volume") },
		func() error { return l.Write(ctx, "next", "/two/b", "also of the second") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, l.PVName("one")) },
		func() error { return l.Create(ctx, pod("app", l.OtherNode(a), one)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expect(ctx, "app", "/one/a", "of the first volume") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePod(ctx, "next") },
		func() error { return l.DeletePVC(ctx, "one") },
		func() error { return l.DeletePVC(ctx, "two") },
		func() error { return l.Empty(ctx) },
	)
}

// busy is what an array says that has too much to do (hpe-storage/csi-driver#209).
var busy = fault.Error(&wsapi.Fault{Status: http.StatusServiceUnavailable, Code: 270, Desc: "System is too busy. Please try again later"})

func arrayBusy(ctx context.Context, l *sim.Lab) error {
	short, long := claim("short", "fast", "256Mi"), claim("long", "fast", "256Mi")
	var rule *fault.Armed
	app := pod("waits", "", long)
	return steps(
		func() error { return l.Create(ctx, short, long) },
		func() error { _, err := l.Bound(ctx, "short"); return err },
		func() error { _, err := l.Bound(ctx, "long"); return err },
		func() error {
			l.Inject(fault.Rule{Name: "busy twice", Hop: ledger.WSAPI, Op: "POST /vluns", First: 2, Do: busy})
			return l.Create(ctx, pod("app", "", short))
		},
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/short/a", "after two refusals") },
		func() error {
			rule = l.Inject(fault.Rule{Name: "busy for long", Hop: ledger.WSAPI, Op: "POST /vluns", Do: busy})
			return l.Create(ctx, app)
		},
		func() error { return l.HasEvent(ctx, app, "FailedAttachVolume", "busy") },
		func() error { return noteEvent(l, "while the array is busy", app, "FailedAttachVolume") },
		func() error {
			for _, e := range l.Ledger.Entries(ledger.OnHop(ledger.CSI, "ControllerPublishVolume"), ledger.About(l.VolumeID("long"))) {
				if e.Outcome != ledger.Pending && e.Code != "Unavailable" {
					return fmt.Errorf("%v: must be Unavailable: %w", e, errUnexpected)
				}
			}
			if n := l.Starts("csp") + l.Starts("driver-controller"); n != 2 {
				return fmt.Errorf("provider and driver were started %d times: %w", n, errUnexpected)
			}
			return nil
		},
		func() error { l.Disarm(rule); return nil },
		func() error { _, err := l.Running(ctx, "waits"); return err },
		func() error { return l.Write(ctx, "waits", "/long/a", "at last") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePod(ctx, "waits") },
		func() error { return l.DeletePVC(ctx, "short") },
		func() error { return l.DeletePVC(ctx, "long") },
		func() error { return l.Empty(ctx) },
	)
}

func keyExpired(ctx context.Context, l *sim.Lab) error {
	// The sessions do end: an array that only said so would keep one that nobody
	// uses.
	expire := fault.Func("the sessions end", func(context.Context, fault.Call) error {
		for _, a := range l.SAN().Arrays() {
			a.EndSessions()
		}
		return nil
	})
	var rules []*fault.Armed
	for _, op := range []string{"POST /volumes", "POST /hosts", "POST /vluns", "POST /volumes/{name}", "PUT /volumes/{name}", "DELETE /vluns/{id}", "DELETE /volumes/{name}"} {
		rules = append(rules, l.Inject(fault.Rule{Name: "the key expires before " + op, Hop: ledger.WSAPI, Op: op, Nth: 1, Do: expire}))
	}
	c := claim("data", "fast-xfs", "512Mi")
	return steps(
		func() error { return l.Create(ctx, c, pod("app", "", c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/data/a", "over expired keys") },
		func() error { _, err := l.TakeSnapshot(ctx, "cut", "data", "snap"); return err },
		func() error { return l.DeleteSnapshot(ctx, "cut") },
		func() error { return l.Expand(ctx, "data", "1Gi") },
		func() error { return l.BackendSize(ctx, "data", "1Gi") },
		func() error { return l.Expect(ctx, "app", "/data/a", "over expired keys") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.Empty(ctx) },
		func() error {
			var never []string
			for _, r := range rules {
				if r.Fired() == 0 {
					never = append(never, r.Name)
				}
			}
			// Nothing of it is a failure for who asked.
			for _, e := range l.Ledger.Entries(ledger.OnHop(ledger.CSI, "")) {
				if e.Outcome != ledger.OK && strings.Contains(e.Op, "Volume") && strings.HasPrefix(e.Component, "csi-") {
					return fmt.Errorf("%s failed with %s: %w", e.Op, e.Code, errUnexpected)
				}
			}
			if len(never) > 0 {
				return fmt.Errorf("never: %s: %w", strings.Join(never, "; "), errUnexpected)
			}
			return nil
		},
	)
}

func providerRestarted(ctx context.Context, l *sim.Lab) error {
	on := l.Operations()
	var rules []*fault.Armed
	for _, op := range []string{on.Create, on.Attach, on.Snapshot, on.Detach, on.Delete} {
		rules = append(rules, l.Inject(fault.Rule{Name: "the provider dies after " + op, Hop: ledger.CSP, Op: op, Phase: fault.After, Nth: 1, Do: fault.Crash("csp")}))
	}
	c := claim("data", "fast", "256Mi")
	return steps(
		func() error { return l.Create(ctx, c, pod("app", "", c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/data/a", "over its lives") },
		func() error { _, err := l.TakeSnapshot(ctx, "cut", "data", "snap"); return err },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeleteSnapshot(ctx, "cut") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.Empty(ctx) },
		func() error {
			if n := l.Starts("csp"); n < 1+len(rules) {
				return fmt.Errorf("the provider had %d lives: %w", n, errUnexpected)
			}
			return nil
		},
	)
}

func cloneWhileCopied(ctx context.Context, l *sim.Lab) error {
	src := claim("source", "fast", "256Mi")
	copied := claim("copied", "fast", "256Mi", fromClaim("source"))
	return steps(
		func() error { return l.Create(ctx, src, pod("app", "", src)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/source/a", "before the clone") },
		func() error { return l.Create(ctx, copied) },
		func() error { return l.HasEvent(ctx, copied, "ProvisioningFailed", "still works on it") },
		func() error { return noteEvent(l, "while it is copied", copied, "ProvisioningFailed") },
		func() error { return l.Write(ctx, "app", "/source/b", "after the clone was asked for") },
		func() error { l.SetCopyRate(1 << 20); return nil },
		func() error { _, err := l.Bound(ctx, "copied"); return err },
		func() error { l.Expects("copied", map[string]string{"a": "before the clone"}); return nil },
		func() error { return l.Create(ctx, pod("reader", "", copied)) },
		func() error { _, err := l.Running(ctx, "reader"); return err },
		func() error { return l.Expect(ctx, "reader", "/copied/a", "before the clone") },
		func() error { return l.Write(ctx, "reader", "/copied/a", "the clone's own!") },
		func() error { return l.Expect(ctx, "app", "/source/a", "before the clone") },
		func() error { return backendVolumes(l, 2) },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePod(ctx, "reader") },
		func() error { return l.DeletePVC(ctx, "source") },
		func() error { return l.DeletePVC(ctx, "copied") },
		func() error { return l.Empty(ctx) },
	)
}

func imported(ctx context.Context, l *sim.Lab) error {
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "import"}, Provisioner: l.DriverName(),
		Parameters: l.Parameters(map[string]string{"csi.storage.k8s.io/fstype": "ext4", "importVolumeName": "legacy"})}
	old := claim("old", "fast", "256Mi")
	c := claim("taken", "import", "256Mi")
	return steps(
		// The volume with data that nobody knows any more: its claim is gone, by
		// policy it stayed, and somebody renamed it.
		func() error { return l.Create(ctx, old, pod("app", "", old)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/old/a", "of long ago") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, l.PVName("old")) },
		func() error { return l.Disown(ctx, "old", "legacy") },
		func() error { return l.Create(ctx, class, c, pod("user", "", c)) },
		func() error { _, err := l.Running(ctx, "user"); return err },
		func() error { l.Expects("taken", map[string]string{"a": "of long ago"}); return nil },
		func() error { return l.Expect(ctx, "user", "/taken/a", "of long ago") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "user") },
		func() error { return l.DeletePVC(ctx, "taken") },
		func() error { return l.Empty(ctx) },
	)
}

// forgetSource makes an empty volume where a clone of another is asked for.
func forgetSource(o *sim.Options) {
	o.AlterCSI = func(op string, req any) any {
		r, ok := req.(*csi.CreateVolumeRequest)
		if !ok || r.GetVolumeContentSource().GetVolume() == nil {
			return req
		}
		r = proto.CloneOf(r)
		r.VolumeContentSource = nil
		return r
	}
}
