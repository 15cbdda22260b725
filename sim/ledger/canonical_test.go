package ledger_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/csilab/csilab/sim/ledger"
)

// life is what one volume sees, in a world with its own ids, with calls that
// are independent of each other in a random order.
func life(seed uint64, uuid, disk, task string) []ledger.Entry {
	volume := "7fd04a0c-0000-4000-8000-" + uuid
	es := []ledger.Entry{
		{Hop: ledger.CSI, Op: "CreateVolume", Component: "csi-provisioner", Volume: "pvc-" + volume, Outcome: ledger.OK},
		{Hop: ledger.CSI, Op: "Probe", Component: "csi-attacher", Outcome: ledger.OK},
		{Hop: ledger.CSI, Op: "Probe", Component: "csi-attacher", Outcome: ledger.OK},
		{Hop: ledger.CSI, Op: "NodeGetInfo", Component: "kubelet@node-2", Node: "node-2", Outcome: ledger.OK},
		{Hop: ledger.CSI, Op: "NodeGetInfo", Component: "kubelet@node-1", Node: "node-1", Outcome: ledger.Failed, Code: "Unavailable", Fault: "driver is away"},
	}
	r := rand.New(rand.NewPCG(seed, 1))
	r.Shuffle(len(es), func(i, j int) { es[i], es[j] = es[j], es[i] })
	for i := range es {
		es[i].Seq = uint64(i) + 1
		if es[i].Op == "CreateVolume" {
			es = append(es,
				ledger.Entry{Seq: 10, Hop: ledger.VCenter, Op: "CnsCreateVolume", Component: "driver-controller", Volume: "pvc-" + volume, Outcome: ledger.MaybeApplied, Cause: es[i].Seq},
				ledger.Entry{Seq: 11, Hop: ledger.VCenter, Op: "task:CnsCreateVolume", Component: "vcenter", Volume: disk, Request: task, Outcome: ledger.OK, Cause: 10},
				ledger.Entry{Seq: 12, Hop: ledger.VCenter, Op: "GET /rest/vcenter/vm/" + task, Component: "driver-controller", Volume: disk, Outcome: ledger.OK, Cause: 99})
		}
	}
	return es
}

const wantLife = `csi CreateVolume volume pvc-{v1} by csi-provisioner: ok
  vcenter CnsCreateVolume volume pvc-{v1} by driver-controller: maybe-applied
    vcenter task:CnsCreateVolume volume {v2} by vcenter: ok
csi NodeGetInfo node node-1 by kubelet@node-1: failed Unavailable [driver is away]
csi NodeGetInfo node node-2 by kubelet@node-2: ok
csi Probe by csi-attacher: ok (x2)
vcenter GET /rest/vcenter/vm/{id1} volume {v2} by driver-controller: ok
`

func TestCanonical(t *testing.T) {
	for seed, ids := range [][3]string{
		{"000000000001", "6000c29fffffffffffffffffffffffff", "vm-12"},
		{"abcdef000001", "6000C29aaaaaaaaaaaaaaaaaaaaaaaaa", "vm-7"},
		{"123456789abc", "0a00c29fffffffffffffffffffffffff", "vm-1"},
	} {
		if got := ledger.Canonical(life(uint64(seed), ids[0], ids[1], ids[2])); got != wantLife {
			t.Errorf("seed %d:\n%swant:\n%s", seed, got, wantLife)
		}
	}
}

// What happens once more, fails, or happens to something else is seen.
func TestCanonicalTellsApart(t *testing.T) {
	for name, change := range map[string]func([]ledger.Entry) []ledger.Entry{
		"once more":         func(es []ledger.Entry) []ledger.Entry { e := es[0]; e.Seq = 50; return append(es, e) },
		"another outcome":   func(es []ledger.Entry) []ledger.Entry { es[1].Outcome = ledger.Pending; return es },
		"another subject":   func(es []ledger.Entry) []ledger.Entry { es[6].Volume = strings.Repeat("9", 32); return es },
		"another cause":     func(es []ledger.Entry) []ledger.Entry { es[6].Cause = 0; return es },
		"another component": func(es []ledger.Entry) []ledger.Entry { es[0].Component = "x"; return es },
	} {
		es := life(3, "000000000001", strings.Repeat("a", 32), "vm-1")
		if ledger.Canonical(change(es)) == wantLife {
			t.Errorf("%s: reads the same", name)
		}
	}
	if s := ledger.Canonical(nil); s != "" {
		t.Errorf("nothing is %q", s)
	}
}

// Volumes that begin alike keep their names whichever comes first, when
// something later tells them apart; and so do those whose calls end in another
// order.
func TestCanonicalNamesAreStable(t *testing.T) {
	a, b := strings.Repeat("a", 32), strings.Repeat("b", 32)
	record := func(first, second string) []ledger.Entry {
		var es []ledger.Entry
		add := func(op, volume, snapshot string) {
			es = append(es, ledger.Entry{Seq: uint64(len(es)) + 1, Hop: ledger.CSI, Op: op, Volume: volume, Snapshot: snapshot, Component: "x", Outcome: ledger.OK})
		}
		for _, op := range []string{"Attach", "Detach"} {
			add(op, first, "")
			add(op, second, "")
			first, second = second, first
		}
		add("Snapshot", a, strings.Repeat("c", 32))
		return es
	}
	x, y := ledger.Canonical(record(a, b)), ledger.Canonical(record(b, a))
	if x != y {
		t.Errorf("one order:\n%sanother:\n%s", x, y)
	}
}
