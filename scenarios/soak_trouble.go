package scenarios

import (
	"context"
	"math/rand/v2"
	"strings"
	"syscall"
	"time"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/vcenter"
)

// trouble is a kind of fault of a soak.
type trouble struct {
	name     string
	backends []string // none: all
	// begin makes it happen, and returns what heals it; nil: it was an instant.
	// did is told of each fault that acted.
	begin func(ctx context.Context, l *sim.Lab, r *rand.Rand, did func(kind string)) (heal func())
}

// rules are faults on a share of the calls, for a while.
func rules(name string, backends []string, make func(l *sim.Lab, r *rand.Rand) []fault.Rule) trouble {
	return trouble{name, backends, func(_ context.Context, l *sim.Lab, r *rand.Rand, did func(string)) func() {
		rs := make(l, r)
		share := 0.1 + 0.4*r.Float64()
		for i := range rs {
			rs[i].Probability = share
		}
		return armed(l, name, did, rs...)
	}}
}

func driverCalls(c fault.Call) bool { return c.Component == "driver-controller" && !waits[c.Op] }

// troubles are all kinds, by name.
var troubles = []trouble{
	rules("csi-reply-lost", nil, func(*sim.Lab, *rand.Rand) []fault.Rule {
		return []fault.Rule{{Hop: ledger.CSI, Phase: fault.After, Do: fault.Drop()}}
	}),
	rules("csi-error", nil, func(_ *sim.Lab, r *rand.Rand) []fault.Rule {
		c := []codes.Code{codes.Unavailable, codes.Internal, codes.Aborted, codes.ResourceExhausted, codes.DeadlineExceeded}[r.IntN(5)]
		return []fault.Rule{{Hop: ledger.CSI, Do: fault.Error(status.Error(c, "soak"))}}
	}),
	rules("csi-error-after", nil, func(*sim.Lab, *rand.Rand) []fault.Rule {
		return []fault.Rule{{Hop: ledger.CSI, Phase: fault.After, Do: fault.Error(status.Error(codes.DeadlineExceeded, "soak"))}}
	}),
	rules("csi-slow", nil, func(_ *sim.Lab, r *rand.Rand) []fault.Rule {
		return []fault.Rule{{Hop: ledger.CSI, Phase: fault.After, Do: fault.Delay(time.Duration(r.IntN(120)) * time.Second)}}
	}),
	rules("csi-hang", nil, func(*sim.Lab, *rand.Rand) []fault.Rule {
		return []fault.Rule{{Hop: ledger.CSI, Do: fault.Hang()}}
	}),
	rules("backend-reply-lost", nil, func(l *sim.Lab, _ *rand.Rand) []fault.Rule {
		return []fault.Rule{{Hop: l.StorageHop(), Phase: fault.After, Match: driverCalls, Do: fault.Drop()}}
	}),
	rules("backend-slow", nil, func(l *sim.Lab, r *rand.Rand) []fault.Rule {
		return []fault.Rule{{Hop: l.StorageHop(), Match: driverCalls, Do: fault.Delay(time.Duration(r.IntN(60)) * time.Second)}}
	}),
	rules("array-busy", []string{sim.HPE}, func(*sim.Lab, *rand.Rand) []fault.Rule {
		return []fault.Rule{{Hop: ledger.WSAPI, Do: busy}}
	}),
	rules("array-session", []string{sim.HPE}, func(*sim.Lab, *rand.Rand) []fault.Rule {
		return []fault.Rule{{Hop: ledger.WSAPI, Do: fault.Error(&array.Error{Kind: array.SessionKey, Reason: "invalid session key"})}}
	}),
	rules("array-reply-lost", []string{sim.HPE}, func(*sim.Lab, *rand.Rand) []fault.Rule {
		return []fault.Rule{{Hop: ledger.WSAPI, Phase: fault.After, Do: fault.Drop()}}
	}),
	rules("task-fails", []string{sim.VSphere}, func(*sim.Lab, *rand.Rand) []fault.Rule {
		return []fault.Rule{{Hop: ledger.VCenter, Match: func(c fault.Call) bool { return strings.HasPrefix(c.Op, "task:") }, Do: fault.Error(&vcenter.Fault{Fault: &cnstypes.CnsFault{Reason: "soak"}})}}
	}),
	rules("host-error", nil, func(_ *sim.Lab, r *rand.Rand) []fault.Rule {
		no := []syscall.Errno{syscall.EIO, syscall.EBUSY, syscall.ENOMEM}[r.IntN(3)]
		return []fault.Rule{{Hop: ledger.Host, Match: func(c fault.Call) bool { return strings.HasPrefix(c.Component, "driver@") }, Do: fault.Error(no)}}
	}),
	{"backend-away", nil, func(_ context.Context, l *sim.Lab, _ *rand.Rand, did func(string)) func() {
		did("backend-away")
		return outage(l)
	}},
	{"sessions-end", nil, func(_ context.Context, l *sim.Lab, _ *rand.Rand, did func(string)) func() {
		did("sessions-end")
		l.KillSessions()
		return nil
	}},
	{"control-plane-crash", nil, func(_ context.Context, l *sim.Lab, r *rand.Rand, did func(string)) func() {
		return crash(l, r, did, "csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter", "attachdetach-controller", "persistentvolume-controller", "default-scheduler")
	}},
	{"driver-crash", nil, func(_ context.Context, l *sim.Lab, r *rand.Rand, did func(string)) func() {
		names := []string{"driver-controller"}
		for _, n := range l.Nodes() {
			names = append(names, "driver@"+n, "registrar@"+n)
		}
		return crash(l, r, did, names...)
	}},
	{"provider-crash", []string{sim.HPE}, func(_ context.Context, l *sim.Lab, r *rand.Rand, did func(string)) func() {
		return crash(l, r, did, "csp")
	}},
	{"kubelet-crash", nil, func(_ context.Context, l *sim.Lab, r *rand.Rand, did func(string)) func() {
		var names []string
		for _, n := range l.Nodes() {
			names = append(names, "kubelet@"+n)
		}
		return crash(l, r, did, names...)
	}},
	{"power-loss", nil, func(ctx context.Context, l *sim.Lab, r *rand.Rand, did func(string)) func() {
		nodes := l.Nodes()
		node := nodes[r.IntN(len(nodes))]
		if l.PowerOff(ctx, node) != nil {
			return nil // it is off
		}
		did("power-loss")
		return func() { _ = l.PowerOn(context.WithoutCancel(ctx), node) }
	}},
}

func crash(l *sim.Lab, r *rand.Rand, did func(string), names ...string) func() {
	name := names[r.IntN(len(names))]
	kind, _, _ := strings.Cut(name, "@")
	did("crash " + kind)
	l.Crash(name)
	return nil
}
