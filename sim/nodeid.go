package sim

import (
	"regexp"
	"slices"
	"strings"
)

// NodeID is a node's id in CSI; "" before the driver has registered there.
func (l *Lab) NodeID(node string) string { return l.node(node).csiID() }

// Tells says whether a text names a node: by its name, the id of its machine,
// or a uuid that is its id in CSI or stands in it.
func (l *Lab) Tells(text, node string) bool {
	n := l.node(node)
	text, id := strings.ToLower(text), strings.ToLower(n.csiID())
	if strings.Contains(text, n.Name) || strings.Contains(text, strings.ToLower(n.uuid)) {
		return true
	}
	return slices.ContainsFunc(uuids.FindAllString(text, -1), func(u string) bool { return strings.Contains(id, u) })
}

var uuids = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
