package provisioner

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csilab/csilab/sim/kube/store"
)

// segment is one key and value of a topology; a term is all of one place, by key.
type segment struct{ key, value string }
type term []segment

func (t term) sort() term {
	slices.SortFunc(t, func(a, b segment) int { return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.value, b.value)) })
	return t
}

func compareTerms(a, b term) int {
	if c := cmp.Compare(len(a), len(b)); c != 0 {
		return c
	}
	return slices.CompareFunc(a, b, func(x, y segment) int { return cmp.Or(cmp.Compare(x.key, y.key), cmp.Compare(x.value, y.value)) })
}

// holds says whether every segment of t is one of o's.
func (t term) holds(o term) bool {
	for _, s := range t {
		if !slices.Contains(o, s) {
			return false
		}
	}
	return true
}

// requirements is where a volume may be, and where it is best
// (P topology.go:141 GenerateAccessibilityRequirements). With a node the best
// is the node's own place; without one it is spread over the places by the
// claim's name. nil where nothing is asked for.
func (h *handler) requirements(claim string, allowed []corev1.TopologySelectorTerm, node *corev1.Node) (*csi.TopologyRequirement, error) {
	var keys []string
	var here term
	if node != nil {
		cn, err := store.Get[storagev1.CSINode](h.Client, "", node.Name)
		if err != nil {
			return nil, fmt.Errorf("error getting CSINode for selected node %q: %w", node.Name, err)
		}
		if keys = topologyKeys(cn, h.Driver); len(keys) == 0 {
			return nil, fmt.Errorf("no topology key found on CSINode %s", cn.Name)
		}
		var ok bool
		if here, ok = termOf(node, keys); !ok {
			return nil, fmt.Errorf("topology labels from selected node %v does not match topology keys from CSINode %v", node.Labels, keys)
		}
	}
	var requisite []term
	flat := flatten(allowed)
	switch {
	case node != nil && h.flags.StrictTopology:
		if len(allowed) > 0 && !slices.ContainsFunc(flat, func(t term) bool { return t.holds(here) }) {
			return nil, fmt.Errorf("selected node '%q' topology '%v' is not in allowed topologies: %v", node.Name, here, flat)
		}
		requisite = []term{here}
	case len(allowed) > 0:
		requisite = flat
	case node == nil && !h.flags.ImmediateTopology:
		return nil, nil
	default:
		var err error
		if requisite, err = h.everywhere(keys); err != nil {
			return nil, err
		}
		if len(requisite) == 0 {
			return nil, fmt.Errorf("no available topology found")
		}
	}
	if len(requisite) == 0 { // empty entries in allowedTopologies
		return nil, nil
	}
	slices.SortFunc(requisite, compareTerms)
	requisite = slices.CompactFunc(requisite, slices.Equal)

	first := -1
	switch {
	case node == nil:
		hash, index := spread(claim)
		first = int((hash + index) % uint32(len(requisite)))
	case h.flags.StrictTopology:
		first = 0
	default:
		first = slices.IndexFunc(requisite, func(t term) bool { return t.holds(here) })
	}
	if first < 0 {
		return nil, fmt.Errorf("topology %v from selected node %q is not in requisite: %v", here, node.Name, requisite)
	}
	return &csi.TopologyRequirement{Requisite: toCSI(requisite), Preferred: toCSI(slices.Concat(requisite[first:], requisite[:first]))}, nil
}

// everywhere is the places of all nodes that have the keys; keys nil takes
// those of the first node that the driver has registered topology keys for
// (the real provisioner takes any).
func (h *handler) everywhere(keys []string) ([]term, error) {
	for _, cn := range store.List[storagev1.CSINode](h.Client, "") {
		if keys != nil {
			break
		}
		keys = topologyKeys(cn, h.Driver)
	}
	if len(keys) == 0 {
		return nil, nil
	}
	var out []term
	for _, n := range store.List[corev1.Node](h.Client, "") {
		if t, ok := termOf(n, keys); ok {
			out = append(out, t)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("topologyKeys %v were not found on any nodes", keys)
	}
	return out, nil
}

func topologyKeys(n *storagev1.CSINode, driver string) []string {
	for _, d := range n.Spec.Drivers {
		if d.Name == driver {
			return d.TopologyKeys
		}
	}
	return nil
}

func termOf(n *corev1.Node, keys []string) (term, bool) {
	var t term
	for _, k := range keys {
		v, ok := n.Labels[k]
		if !ok {
			return nil, false
		}
		t = append(t, segment{k, v})
	}
	return t.sort(), true
}

// flatten turns allowedTopologies, an OR of ANDs of ORs, into an OR of ANDs.
func flatten(allowed []corev1.TopologySelectorTerm) []term {
	var out []term
	for _, sel := range allowed {
		var terms []term
		for i, e := range sel.MatchLabelExpressions {
			var next []term
			for _, v := range e.Values {
				if i == 0 {
					next = append(next, term{{e.Key, v}})
				}
				for _, t := range terms {
					next = append(next, append(slices.Clone(t), segment{e.Key, v}))
				}
			}
			terms = next
		}
		for _, t := range terms {
			out = append(out, t.sort())
		}
	}
	return out
}

func toCSI(ts []term) []*csi.Topology {
	var out []*csi.Topology
	for _, t := range ts {
		m := map[string]string{}
		for _, s := range t {
			m[s.key] = s.value
		}
		out = append(out, &csi.Topology{Segments: m})
	}
	return out
}

// spread is where in the sorted places a claim starts: claims of one
// StatefulSet, NAME-SET-INDEX, go round (P topology.go:564).
func spread(claim string) (hash, index uint32) {
	name := claim
	if i := strings.LastIndexByte(claim, '-'); i >= 0 {
		if n, err := strconv.ParseUint(claim[i+1:], 10, 32); err == nil {
			index, name = uint32(n), claim[:i]
			if j := strings.LastIndexByte(name, '-'); j >= 0 {
				name = name[j+1:]
			}
		}
	}
	f := fnv.New32()
	f.Write([]byte(name))
	return f.Sum32(), index
}

// nodeAffinity says from where a volume can be used; nil is from everywhere
// (P topology.go GenerateVolumeNodeAffinity).
func nodeAffinity(places []*csi.Topology) *corev1.VolumeNodeAffinity {
	var terms []corev1.NodeSelectorTerm
	for _, p := range places {
		var es []corev1.NodeSelectorRequirement
		for _, k := range slices.Sorted(maps.Keys(p.GetSegments())) {
			es = append(es, corev1.NodeSelectorRequirement{Key: k, Operator: corev1.NodeSelectorOpIn, Values: []string{p.Segments[k]}})
		}
		if len(es) > 0 {
			terms = append(terms, corev1.NodeSelectorTerm{MatchExpressions: es})
		}
	}
	if len(terms) == 0 {
		return nil
	}
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: terms}}
}
