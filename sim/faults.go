package sim

import (
	"slices"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

// Hops are those that calls of this lab pass.
func (l *Lab) Hops() []ledger.Hop {
	out := []ledger.Hop{ledger.CSI, l.StorageHop()}
	if l.StorageHop() == ledger.CSP {
		out = append(out, ledger.WSAPI)
	}
	return append(out, ledger.Host, ledger.Registration, ledger.Kube)
}

// nodeName is the name of a node that a call names by its id; what is no id of
// a node stays as it is.
func (l *Lab) nodeName(id string) string {
	if l.node(id) != nil {
		return id
	}
	if name, ok := l.nodeNames.Load(id); ok {
		return name.(string)
	}
	if n := l.nodeByID(id); n != nil {
		l.nodeNames.Store(id, n.Name)
		return n.Name
	}
	return id
}

// InjectAll arms rules in their order.
func (l *Lab) InjectAll(rules []fault.Rule) (armed []*fault.Armed) {
	for _, r := range slices.Clone(rules) {
		armed = append(armed, l.Inject(r))
	}
	return armed
}

// ForgetTasks makes the vCenters forget the tasks that run now, as their restart
// does: so a task that would run for ever ends for who waits for it. It returns
// how many there were.
func (l *Lab) ForgetTasks() (n int) {
	if l.opts.Backend == HPE {
		return 0
	}
	for _, name := range l.VCenterNames() {
		v := l.VCenterNamed(name)
		var ids []string
		for _, t := range v.TaskList() {
			if t.Completed == nil {
				ids = append(ids, t.ID)
			}
		}
		if len(ids) > 0 { // without, all that have finished would go
			n += v.PurgeTasks(ids...)
		}
	}
	return n
}
