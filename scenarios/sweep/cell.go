package sweep

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

// Call is one call of a flow's body: the nth that a component makes of an
// operation since the body began.
type Call struct {
	Hop       ledger.Hop `json:"hop"`
	Op        string     `json:"op"`
	Component string     `json:"component"`
	Nth       int        `json:"nth"`
}

func (c Call) String() string { return fmt.Sprintf("%s/%s#%d,%s", c.Hop, c.Op, c.Nth, c.Component) }

// planned is a kind at a call.
type planned struct {
	call    Call
	kind    string
	trouble Trouble
}

// id names a fault in a flow: what --cell takes.
func (p planned) id() string { return p.call.String() + "," + p.kind }

// rule is the fault's rule, for one lab.
func (p planned) rule() (fault.Rule, error) {
	return p.trouble.rule(fault.Rule{Name: p.id(), Hop: p.call.Hop, Op: p.call.Op, Component: p.call.Component, Nth: p.call.Nth, MayNotFire: true})
}

// between joins the faults of a pair in its id.
const between = " + "

func idOf(ps []planned) string {
	var ids []string
	for _, p := range ps {
		ids = append(ids, p.id())
	}
	return strings.Join(ids, between)
}

// State is what became of a cell.
type State string

// The states of a cell.
const (
	Healed  State = "healed"  // the fault fired, and all came right again
	Failed  State = "failed"  // the fault fired, and something is wrong
	NoFault State = "unfired" // the call did not come again, or the flow never got there: no cell
)

// Cell is one run of a flow with a fault, or with two.
type Cell struct {
	ID       string        `json:"id"`
	Calls    []Call        `json:"calls"`
	Kinds    []string      `json:"kinds"`
	State    State         `json:"state"`
	Class    string        `json:"class,omitempty"` // of a failed one: invariant, no-convergence, failed, environment, interrupted
	Reason   string        `json:"reason,omitempty"`
	Ledger   string        `json:"ledger,omitempty"` // file
	Replay   string        `json:"replay,omitempty"` // the command that runs it again
	Duration time.Duration `json:"duration"`         // of the lab's time, from the fault on
	// Extra is how many calls more than without a fault it took.
	Extra int `json:"extraCalls"`

	err error
}

// Err is what is wrong with a cell that failed, or nil.
func (c Cell) Err() error { return c.err }

// Misfit is a kind that does not fit some calls, and why.
type Misfit struct {
	Kind   string `json:"kind"`
	Reason string `json:"reason"`
	Calls  int    `json:"calls"`
}

// background are calls that loops make at times of their own.
func background(e ledger.Entry) bool {
	switch e.Hop {
	case ledger.VCenter:
		// A client waits for the end of its tasks in these.
		return e.Op == "WaitForUpdatesEx" || e.Op == "CancelWaitForUpdates"
	case ledger.Kube:
		verb, kind, _ := strings.Cut(e.Op, " ")
		switch {
		case e.Component == "user" || e.Component == "admin":
			return true // a person's: the flow does them
		case kind == "events", kind == "leases":
			return true
		case kind == "nodes" && strings.HasPrefix(verb, "update"):
			return true // the status of nodes
		}
	case ledger.Host:
		// What a program in a pod reads and writes: it hears of errors itself.
		return (e.Op == "ReadAt" || e.Op == "WriteAt") && strings.HasPrefix(e.Component, "kubelet@")
	case ledger.CSI:
		// The attacher compares with ListVolumes once a minute.
		return e.Op == "ListVolumes" && e.Component == "csi-attacher"
	}
	return false
}

// callsOf numbers the calls of a body.
func callsOf(es []ledger.Entry, keep func(ledger.Entry) bool) (calls []Call, entries []ledger.Entry) {
	seen := map[Call]int{}
	for _, e := range es {
		c := Call{Hop: e.Hop, Op: e.Op, Component: e.Component}
		seen[c]++
		if background(e) || keep != nil && !keep(e) {
			continue
		}
		c.Nth = seen[c]
		calls, entries = append(calls, c), append(entries, e)
	}
	return calls, entries
}

// plan makes the cells of a flow's calls, and says which kinds fit where. lacks
// says why a kind of fault can't be done in the lab.
func plan(calls []Call, entries []ledger.Entry, ks []Kind, t times, lacks func(kind string) string) (cells []planned, misfits []Misfit) {
	for i, c := range calls {
		for _, k := range ks {
			trouble, err := k.At(entries[i], t)
			if why := limit(entries[i], k.Name); why != "" && err == nil {
				err = errors.New(why)
			}
			if err == nil {
				if why := lacks(trouble.Kind); why != "" {
					err = errors.New("the lab " + why)
				}
			}
			if err == nil {
				cell := planned{c, k.Name, trouble}
				if _, err = cell.rule(); err == nil {
					cells = append(cells, cell)
					continue
				}
			}
			j := slices.IndexFunc(misfits, func(m Misfit) bool { return m.Kind == k.Name && m.Reason == err.Error() })
			if j < 0 {
				j, misfits = len(misfits), append(misfits, Misfit{Kind: k.Name, Reason: err.Error()})
			}
			misfits[j].Calls++
		}
	}
	return cells, misfits
}

// pairs draws n different pairs of faults at different calls.
func pairs(cells []planned, n int, seed uint64) (out [][]planned) {
	// What happens at one moment may be in the list in any order.
	cells = slices.Clone(cells)
	slices.SortFunc(cells, func(a, b planned) int { return strings.Compare(a.id(), b.id()) })
	r := rand.New(rand.NewPCG(seed, 2))
	seen := map[[2]int]bool{}
	for tries := 0; len(out) < n && tries < 20*n+100; tries++ {
		a, b := r.IntN(max(1, len(cells))), r.IntN(max(1, len(cells)))
		if a > b {
			a, b = b, a
		}
		if a == b || seen[[2]int{a, b}] || cells[a].call == cells[b].call {
			continue
		}
		seen[[2]int{a, b}] = true
		out = append(out, []planned{cells[a], cells[b]})
	}
	return out
}
