package provisioner

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/csilab/csilab/sim/kube/sidecar"
	"github.com/csilab/csilab/sim/kube/store"
)

// Whatever nodes and classes there are: the places are sorted and each is
// there once, the preferred ones are the same turned round, the node's own
// place comes first, and nothing outside of allowedTopologies is asked for.
func TestRequirementsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := store.New(1, nil)
		c := s.Client("x")
		h := &handler{Session: &sidecar.Session{Driver: "d", Client: c},
			flags: sidecar.Flags{StrictTopology: rapid.Bool().Draw(t, "strict"), ImmediateTopology: true}}
		values := rapid.SampledFrom([]string{"a", "b", "c"})
		keys := []string{"zone", "rack"}[:rapid.IntRange(1, 2).Draw(t, "keys")]
		var nodes []*corev1.Node
		for i := range rapid.IntRange(1, 6).Draw(t, "nodes") {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), Labels: map[string]string{}}}
			for _, k := range keys {
				n.Labels[k] = values.Draw(t, k)
			}
			nodes = append(nodes, n)
			cn := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: n.Name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "d", TopologyKeys: keys}}}}
			if c.Create(context.Background(), n) != nil || c.Create(context.Background(), cn) != nil {
				t.Fatal("create")
			}
		}
		var allowed []corev1.TopologySelectorTerm
		if rapid.Bool().Draw(t, "allowed") {
			allowed = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{
				{Key: "zone", Values: rapid.SliceOfNDistinct(values, 1, 3, rapid.ID).Draw(t, "zones")}}}}
		}
		var node *corev1.Node
		if rapid.Bool().Draw(t, "late") {
			node = rapid.SampledFrom(nodes).Draw(t, "node")
		}
		claim := rapid.SampledFrom([]string{"data", "data-web-0", "data-web-7", "-", "x-99999999999"}).Draw(t, "claim")

		r, err := h.requirements(claim, allowed, node)
		permitted := func(m map[string]string) bool {
			return allowed == nil || slices.Contains(allowed[0].MatchLabelExpressions[0].Values, m["zone"])
		}
		if err != nil {
			if node == nil || permitted(node.Labels) {
				t.Fatalf("refused: %v", err)
			}
			return
		}
		again, _ := h.requirements(claim, allowed, node)
		if !reflect.DeepEqual(segments(r.Preferred), segments(again.Preferred)) {
			t.Fatal("a retry asks for something else")
		}
		req, pref := segments(r.Requisite), segments(r.Preferred)
		if !slices.IsSorted(req) || len(slices.Compact(slices.Clone(req))) != len(req) || len(req) == 0 {
			t.Fatalf("requisite %v", req)
		}
		i := slices.Index(req, pref[0])
		if i < 0 || !slices.Equal(pref, slices.Concat(req[i:], req[:i])) {
			t.Fatalf("requisite %v, preferred %v", req, pref)
		}
		for _, p := range r.Requisite {
			if !permitted(p.Segments) {
				t.Fatalf("%v is not allowed", p)
			}
		}
		if node != nil {
			for k, v := range r.Preferred[0].Segments {
				if node.Labels[k] != v {
					t.Fatalf("node %v, preferred %v", node.Labels, pref)
				}
			}
		}
	})
}

func segments(ts []*csi.Topology) []string {
	var out []string
	for _, t := range ts {
		out = append(out, fmt.Sprint(t.Segments)) // a map prints sorted by key
	}
	return out
}
