package sim

import (
	"context"
	"fmt"
	"slices"

	"github.com/csilab/csilab/sim/host"
)

// ChangeInitiators gives a node that is powered off initiator names that no other
// node has or had: somebody edits its /etc/iscsi/initiatorname.iscsi, or puts in
// another FC adapter. What the array exports to the old names stays as it is.
func (l *Lab) ChangeInitiators(_ context.Context, node string) error {
	b, err := l.onHPE("to change a node's initiators")
	if err != nil {
		return err
	}
	i := slices.IndexFunc(b.nodes, func(m machine) bool { return m.name == node })
	if i < 0 {
		return fmt.Errorf("no node %q, allowed are %v", node, l.Nodes())
	}
	n, ok := l.node(node).host.(interface{ SetAdapters(host.Adapters) error })
	if !ok {
		return fmt.Errorf("node %s: its adapters can't be changed", node)
	}
	b.naming.Lock()
	defer b.naming.Unlock()
	a := b.initiators(len(b.nodes) + b.renamed)
	if err := n.SetAdapters(a); err != nil {
		return err
	}
	b.renamed++
	m := &b.nodes[i].adapters
	m.IQN, m.WWPNs = a.IQN, a.WWPNs
	b.san.For(node, *m)
	return nil
}

// Initiators are the names by which a node's adapters log in to arrays; none on
// another backend.
func (l *Lab) Initiators(node string) []string {
	b, err := l.onArrays()
	if err != nil {
		return nil
	}
	b.naming.RLock()
	defer b.naming.RUnlock()
	for _, m := range b.nodes {
		switch {
		case m.name != node:
		case m.adapters.IQN != "":
			return []string{m.adapters.IQN}
		default:
			return slices.Clone(m.adapters.WWPNs)
		}
	}
	return nil
}
