package scenarios

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

// trouble is a kind of fault of a soak: rules that are armed for a while, and
// heal when they are taken out.
type trouble struct {
	name     string
	backends []string // none: all
	rules    func(l *sim.Lab, r *rand.Rand) []fault.Rule
}

// fits says whether the trouble makes sense on a backend.
func (t trouble) fits(backend string) bool {
	return len(t.backends) == 0 || slices.Contains(t.backends, backend)
}

// does completes a rule with a kind of fault. It panics on one that does not fit:
// the troubles below are fixed.
func does(at fault.Rule, kind string, params any) fault.Rule {
	k, ok := fault.Lookup(kind)
	if !ok {
		panic("soak: there is no fault " + kind)
	}
	rule, err := k.Rule(at, params)
	if err != nil {
		panic(fmt.Sprintf("soak: %v", err))
	}
	return rule
}

// often is a fault on a share of the calls.
func often(name string, backends []string, kind string, at func(l *sim.Lab, r *rand.Rand) (fault.Rule, any)) trouble {
	return trouble{name, backends, func(l *sim.Lab, r *rand.Rand) []fault.Rule {
		rule, params := at(l, r)
		rule.Probability = 0.1 + 0.4*r.Float64()
		return []fault.Rule{does(rule, kind, params)}
	}}
}

// once is a change of the lab, at one of its next calls.
func once(name string, backends []string, kind string, params func(l *sim.Lab, r *rand.Rand) any) trouble {
	return trouble{name, backends, func(l *sim.Lab, r *rand.Rand) []fault.Rule {
		hops := slices.DeleteFunc(l.Hops(), func(h ledger.Hop) bool { return h == ledger.Registration }) // too few calls
		rule := fault.Rule{Hop: hops[r.IntN(len(hops))], Phase: []fault.Phase{fault.Before, fault.After}[r.IntN(2)], Match: itsOwn, Nth: 1 + r.IntN(5)}
		return []fault.Rule{does(rule, kind, params(l, r))}
	}}
}

// itsOwn are calls of the system, not those of its users.
func itsOwn(c fault.Call) bool { return c.Component != "user" }

// killed is the death of one of some components.
func killed(name string, backends []string, names func(l *sim.Lab) []string) trouble {
	return once(name, backends, "crash", func(l *sim.Lab, r *rand.Rand) any {
		ns := names(l)
		return &fault.CrashParams{Component: ns[r.IntN(len(ns))]}
	})
}

// onNodes are components of all nodes.
func onNodes(l *sim.Lab, components ...string) (names []string) {
	for _, n := range l.Nodes() {
		for _, c := range components {
			names = append(names, c+"@"+n)
		}
	}
	return names
}

// minutes are a time that a change lasts, if it is not healed before.
func minutes(r *rand.Rand, most int) time.Duration {
	return time.Duration(1+r.IntN(most)) * time.Minute
}

func driverCalls(c fault.Call) bool { return c.Component == "driver-controller" && !waits[c.Op] }

var onVSphere, onHPE = []string{sim.VSphere}, []string{sim.HPE}

// troubles are all kinds, by name.
var troubles = []trouble{
	often("csi-reply-lost", nil, "drop", func(*sim.Lab, *rand.Rand) (fault.Rule, any) {
		return fault.Rule{Hop: ledger.CSI, Phase: fault.After}, nil
	}),
	often("csi-error", nil, "error", func(_ *sim.Lab, r *rand.Rand) (fault.Rule, any) {
		code := []string{"Unavailable", "Internal", "Aborted", "ResourceExhausted", "DeadlineExceeded"}[r.IntN(5)]
		return fault.Rule{Hop: ledger.CSI}, &fault.ErrorParams{Code: code, Message: "soak"}
	}),
	often("csi-error-after", nil, "error", func(*sim.Lab, *rand.Rand) (fault.Rule, any) {
		return fault.Rule{Hop: ledger.CSI, Phase: fault.After}, &fault.ErrorParams{Code: "DeadlineExceeded", Message: "soak"}
	}),
	often("csi-slow", nil, "latency", func(_ *sim.Lab, r *rand.Rand) (fault.Rule, any) {
		return fault.Rule{Hop: ledger.CSI, Phase: fault.After}, &fault.LatencyParams{Time: time.Duration(1+r.IntN(120)) * time.Second}
	}),
	often("csi-hang", nil, "hang", func(*sim.Lab, *rand.Rand) (fault.Rule, any) {
		return fault.Rule{Hop: ledger.CSI, Phase: fault.Before}, nil
	}),
	often("csi-twice", nil, "duplicate", func(*sim.Lab, *rand.Rand) (fault.Rule, any) {
		return fault.Rule{Hop: ledger.CSI}, nil
	}),
	often("backend-reply-lost", nil, "drop", func(l *sim.Lab, _ *rand.Rand) (fault.Rule, any) {
		return fault.Rule{Hop: l.StorageHop(), Phase: fault.After, Match: driverCalls}, nil
	}),
	often("backend-slow", nil, "latency", func(l *sim.Lab, r *rand.Rand) (fault.Rule, any) {
		return fault.Rule{Hop: l.StorageHop(), Match: driverCalls}, &fault.LatencyParams{Time: time.Duration(1+r.IntN(60)) * time.Second}
	}),
	often("array-busy", onHPE, "error", func(*sim.Lab, *rand.Rand) (fault.Rule, any) {
		return fault.Rule{Hop: ledger.WSAPI}, &fault.ErrorParams{Code: "SYSTEM_BUSY"}
	}),
	often("array-session", onHPE, "error", func(*sim.Lab, *rand.Rand) (fault.Rule, any) {
		return fault.Rule{Hop: ledger.WSAPI}, &fault.ErrorParams{Code: "INV_SESS_KEY"}
	}),
	often("array-reply-lost", onHPE, "drop", func(*sim.Lab, *rand.Rand) (fault.Rule, any) {
		return fault.Rule{Hop: ledger.WSAPI, Phase: fault.After}, nil
	}),
	often("task-fails", onVSphere, "error", func(*sim.Lab, *rand.Rand) (fault.Rule, any) {
		return fault.Rule{Hop: ledger.VCenter, Phase: fault.Task}, &fault.ErrorParams{Code: "CnsFault", Message: "soak"}
	}),
	often("host-error", nil, "error", func(_ *sim.Lab, r *rand.Rand) (fault.Rule, any) {
		match := func(c fault.Call) bool { return strings.HasPrefix(c.Component, "driver@") }
		return fault.Rule{Hop: ledger.Host, Match: match}, &fault.ErrorParams{Code: []string{"EIO", "EBUSY", "ENOMEM"}[r.IntN(3)]}
	}),
	{"backend-away", nil, func(l *sim.Lab, _ *rand.Rand) (rules []fault.Rule) {
		for _, p := range []fault.Phase{fault.Before, fault.After} {
			rules = append(rules, does(fault.Rule{Hop: l.StorageHop(), Component: "driver-controller", Phase: p}, "drop", nil))
		}
		return rules
	}},
	once("sessions-end", nil, "session-killed", func(*sim.Lab, *rand.Rand) any { return nil }),
	once("password-rotated", nil, "password-rotated", func(_ *sim.Lab, r *rand.Rand) any { return &fault.LastParams{For: minutes(r, 30)} }),
	once("partition", nil, "partition", func(l *sim.Lab, r *rand.Rand) any {
		node := l.Nodes()[r.IntN(len(l.Nodes()))]
		backend := map[string]string{sim.VSphere: "vcenter", sim.HPE: "csp"}[l.Backend()]
		sides := [][2]string{{node, "control-plane"}, {"kubelet@" + node, "driver@" + node}, {"driver-controller", backend}, {"csi-attacher", "driver-controller"}, {"csi-provisioner", "driver-controller"},
			{"csi-provisioner", "apiserver"}, {"attachdetach-controller", "apiserver"}}
		s := sides[r.IntN(len(sides))]
		if i := r.IntN(2); i == 1 {
			s[0], s[1] = s[1], s[0]
		}
		return &fault.PartitionParams{A: s[0], B: s[1], OneWay: r.IntN(2) == 1, For: minutes(r, 20)}
	}),
	once("vm-moved", onVSphere, "vm-moved", func(l *sim.Lab, r *rand.Rand) any {
		return &fault.NodeParams{Node: l.Nodes()[r.IntN(len(l.Nodes()))]}
	}),
	once("datastore-maintenance", onVSphere, "datastore-maintenance", func(_ *sim.Lab, r *rand.Rand) any {
		return &fault.DatastoreParams{For: minutes(r, 30)}
	}),
	once("storage-full", nil, "storage-full", func(_ *sim.Lab, r *rand.Rand) any {
		return &fault.StorageFullParams{For: minutes(r, 30)}
	}),
	once("device-late", nil, "device-late", func(l *sim.Lab, r *rand.Rand) any {
		return &fault.DeviceLateParams{Node: l.Nodes()[r.IntN(len(l.Nodes()))], By: time.Duration(5+r.IntN(90)) * time.Second, For: minutes(r, 30)}
	}),
	once("account-locked", onVSphere, "account-locked", func(_ *sim.Lab, r *rand.Rand) any {
		return &fault.AccountLockedParams{Sessions: []string{"kept", "ended"}[r.IntN(2)], For: minutes(r, 30)}
	}),
	once("vcenter-crash", onVSphere, "crash", func(l *sim.Lab, r *rand.Rand) any {
		name := "vcenter"
		if names := l.VCenterNames(); len(names) > 1 {
			if i := r.IntN(len(names)); i > 0 {
				name += "@" + names[i]
			}
		}
		return &fault.CrashParams{Component: name, State: []string{"kept", "lost"}[r.IntN(2)], For: minutes(r, 10)}
	}),
	once("array-node-crash", onHPE, "crash", func(l *sim.Lab, r *rand.Rand) any {
		return &fault.CrashParams{Component: fmt.Sprintf("array%d:%d", 1+r.IntN(len(l.SAN().Arrays())), r.IntN(2)), For: minutes(r, 10)}
	}),
	killed("control-plane-crash", nil, func(*sim.Lab) []string {
		return []string{"csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter", "attachdetach-controller", "persistentvolume-controller", "default-scheduler"}
	}),
	killed("driver-crash", nil, func(l *sim.Lab) []string {
		return append(onNodes(l, "driver", "registrar"), "driver-controller")
	}),
	killed("provider-crash", onHPE, func(*sim.Lab) []string { return []string{"csp"} }),
	killed("kubelet-crash", nil, func(l *sim.Lab) []string { return onNodes(l, "kubelet") }),
	once("power-loss", nil, "power-loss", func(l *sim.Lab, r *rand.Rand) any {
		return &fault.PowerLossParams{Node: l.Nodes()[r.IntN(len(l.Nodes()))]}
	}),
}
