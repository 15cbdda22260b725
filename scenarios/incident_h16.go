package scenarios

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/csp"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/wsapi"
)

func init() {
	register(Scenario{
		Name:      "long-node-names",
		Text:      "two nodes have names that are alike in all that an array's host name has room for: each has a host of its own there, over a restart of the storage provider too, and a volume is exported to the one that has it",
		Labels:    []string{"attach", "move"},
		Incidents: []string{"H16 hpe-storage/csi-driver#561, release notes v2.0.0 (CON-1821)"},
		Backends:  onArray,
		Options:   func(o *sim.Options) { o.NodePrefix = "worker-of-the-second-rack-in-the-cellar-" },
		Flow:      longNames,
		Mutation:  "a provider that cuts the name of the host, so that the array has it already",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "the name is taken", Hop: ledger.WSAPI, Op: "POST /hosts",
				Match: func(fault.Call) bool { return len(l.SAN().Arrays()[0].Hosts()) > 0 },
				Do:    fault.Error(&wsapi.Fault{Status: http.StatusConflict, Code: 16, Desc: "host already exists"})})
		},
	})
	register(Scenario{
		Name:      "token-lost-under-load",
		Text:      "the storage provider forgets all tokens while many calls are under way, its login fails once, and once it answers without a token: the driver logs in once for all, sends each call again, and nothing is done twice",
		Labels:    []string{"session", "load", "lost-reply"},
		Incidents: []string{"H17 hpe-storage/csi-driver#64, #208, release notes v2.4.2 (CON-3081)"},
		Backends:  onArray,
		Flow:      tokenLost,
		Mutation:  "a provisioner that gives each attempt a new name, so that the repeat of a call makes a second volume",
		// The provider's own repeats are not seen by it: the call itself has to fail.
		MutateOptions: newNames,
	})
}

func longNames(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	one, two := claim("one", "fast", "256Mi"), claim("two", "fast", "256Mi")
	hosts := func() (names []string) {
		for _, h := range l.SAN().Arrays()[0].Hosts() {
			names = append(names, h.Name)
		}
		slices.Sort(names)
		return names
	}
	var before []string
	return steps(
		func() error { return l.Create(ctx, one, two, pod("first", a, one), pod("second", b, two)) },
		func() error { _, err := l.Running(ctx, "first"); return err },
		func() error { _, err := l.Running(ctx, "second"); return err },
		func() error {
			if before = hosts(); len(before) != 2 {
				return fmt.Errorf("the array has hosts %v for two nodes: %w", before, errUnexpected)
			}
			for pvc, n := range map[string]string{"one": a, "two": b} {
				if _, err := lun(l, pvc, n); err != nil {
					return err
				}
				if left, err := exportsLeft(l, pvc); err != nil || strings.Contains(left, before[0]) && strings.Contains(left, before[1]) {
					return fmt.Errorf("%s is exported to %s: %w", pvc, left, errUnexpected)
				}
			}
			return nil
		},
		func() error { return l.Write(ctx, "first", "/one/a", "of the first") },
		func() error { return l.Write(ctx, "second", "/two/a", "of the second") },
		func() error { return l.Check(ctx) },
		// A provider that has forgotten all finds the same hosts.
		func() error {
			n := l.Starts("csp")
			l.Crash("csp")
			return l.Restarted(ctx, "csp", n)
		},
		func() error { return l.DeletePod(ctx, "first") },
		func() error { return l.Detached(ctx, l.PVName("one")) },
		func() error { return l.Create(ctx, pod("first", b, one)) },
		func() error { _, err := l.Running(ctx, "first"); return err },
		func() error { return l.Expect(ctx, "first", "/one/a", "of the first") },
		func() error {
			if now := hosts(); len(now) != 1 || !slices.Contains(before, now[0]) {
				return fmt.Errorf("the array has hosts %v, before they were %v: %w", now, before, errUnexpected)
			}
			return nil
		},
		func() error { return l.DeletePod(ctx, "second") },
		func() error { return l.Detached(ctx, l.PVName("two")) },
		func() error { return l.Create(ctx, pod("second", a, two)) },
		func() error { _, err := l.Running(ctx, "second"); return err },
		func() error { return l.Expect(ctx, "second", "/two/a", "of the second") },
		func() error {
			if now := hosts(); !slices.Equal(now, before) {
				return fmt.Errorf("the array has hosts %v, before they were %v: %w", now, before, errUnexpected)
			}
			return nil
		},
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "first") },
		func() error { return l.DeletePod(ctx, "second") },
		func() error { return l.DeletePVC(ctx, "one") },
		func() error { return l.DeletePVC(ctx, "two") },
		func() error { return l.Empty(ctx) },
	)
}

func tokenLost(ctx context.Context, l *sim.Lab) error {
	const claims = 4
	var from uint64
	first := claim("first", "fast", "256Mi")
	names := []string{"first"}
	logins := func() []ledger.Entry {
		return l.Ledger.Entries(ledger.After(from), ledger.OnHop(ledger.CSP, "POST /tokens"))
	}
	return steps(
		func() error { return l.Create(ctx, first) },
		func() error { _, err := l.Bound(ctx, "first"); return err },

		// Many at once find that the token is good no more.
		func() error {
			from = uint64(l.Ledger.Len())
			l.KillSessions()
			l.Inject(fault.Rule{Name: "all calls stand before the provider", Hop: ledger.CSP, Op: "GET /volumes", First: claims, Do: together(claims)})
			for i := range claims {
				c := claim(fmt.Sprintf("c%d", i), "fast", "256Mi")
				names = append(names, c.Name)
				if err := l.Create(ctx, c); err != nil {
					return err
				}
			}
			return nil
		},
		func() error {
			for _, n := range names {
				if _, err := l.Bound(ctx, n); err != nil {
					return err
				}
			}
			return nil
		},
		func() error {
			if es := logins(); len(es) != 1 {
				return fmt.Errorf("%d calls without a good token were followed by %d logins, want one: %w", claims, len(es), errUnexpected)
			}
			for _, e := range l.Ledger.Entries(ledger.After(from), ledger.OnHop(ledger.CSI, "CreateVolume")) {
				if e.Outcome != ledger.OK {
					return fmt.Errorf("%v: nobody else has to notice: %w", e, errUnexpected)
				}
			}
			return backendVolumes(l, 1+claims)
		},

		// A login that fails, and one that gives an empty token; and a call that is
		// done when the provider says 401.
		func() error {
			from = uint64(l.Ledger.Len())
			l.KillSessions()
			l.Inject(fault.Rule{Name: "the login fails", Hop: ledger.CSP, Op: "POST /tokens", Nth: 1, Do: fault.Error(&csp.Fault{Status: http.StatusInternalServerError, Message: "database is locked"})})
			l.Inject(fault.Rule{Name: "a login without a token", Hop: ledger.CSP, Op: "POST /tokens", Phase: fault.After, Nth: 1,
				Do: fault.Error(&csp.Fault{Edit: func(reply map[string]any) { reply["session_token"] = "" }})})
			l.Inject(fault.Rule{Name: "401 for what is done", Hop: ledger.CSP, Op: l.Operations().Create, Phase: fault.After, Nth: 1,
				Do: fault.Error(&csp.Fault{Status: http.StatusUnauthorized, Message: "Unauthorized"})})
			l.Inject(fault.Rule{Name: "no answer for what is done", Hop: ledger.CSI, Op: "CreateVolume", Phase: fault.After, OnlySuccess: true, Nth: 1, Do: fault.Drop()})
			c := claim("last", "fast", "256Mi")
			names = append(names, c.Name)
			return l.Create(ctx, c)
		},
		func() error { _, err := l.Bound(ctx, "last"); return err },
		func() error { return backendVolumes(l, 2+claims) },
		func() error { return l.Check(ctx) },
		func() error {
			for _, n := range names {
				if err := l.DeletePVC(ctx, n); err != nil {
					return err
				}
			}
			return l.Empty(ctx)
		},
	)
}
