package sim

import "strings"

// NodeID is a node's id in CSI; "" before the driver has registered there.
func (l *Lab) NodeID(node string) string { return l.node(node).csiID() }

// Tells says whether a text names a node: by its name, its id in CSI or the id
// of its machine.
func (l *Lab) Tells(text, node string) bool {
	n := l.node(node)
	for _, id := range []string{n.Name, n.csiID(), n.uuid} {
		if id != "" && strings.Contains(strings.ToLower(text), strings.ToLower(id)) {
			return true
		}
	}
	return false
}
