package vcenter_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/vmware/govmomi"

	"github.com/csilab/csilab/sim/vcenter"
)

// BenchmarkCreateAndDelete is a pair over TLS with a wait for each task.
func BenchmarkCreateAndDelete(b *testing.B) {
	v, err := vcenter.New(b.Context(), vcenter.Config{TLS: true, Nodes: []vcenter.Node{{Name: "node-1"}}})
	if err != nil {
		b.Fatal(err)
	}
	defer v.Close()
	gc, err := govmomi.NewClient(b.Context(), v.URL(), true)
	if err != nil {
		b.Fatal(err)
	}
	defer gc.CloseIdleConnections()
	c, err := cnsClient(b.Context(), gc)
	if err != nil {
		b.Fatal(err)
	}
	n := 0
	for b.Loop() {
		n++
		id, err := c.create(b.Context(), fmt.Sprintf("pvc-%d", n))
		if err != nil {
			b.Fatal(err)
		}
		if err := c.delete(b.Context(), id); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkStart is New and Close of a vCenter with three nodes.
func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		v, err := vcenter.New(context.Background(), vcenter.Config{TLS: true, Nodes: []vcenter.Node{{Name: "node-1"}, {Name: "node-2"}, {Name: "node-3"}}})
		if err != nil {
			b.Fatal(err)
		}
		v.Close()
	}
}

// BenchmarkStartBig is a vCenter with a thousand nodes.
func BenchmarkStartBig(b *testing.B) {
	var nodes []vcenter.Node
	for i := range 1000 {
		nodes = append(nodes, vcenter.Node{Name: fmt.Sprintf("node-%d", i)})
	}
	for b.Loop() {
		v, err := vcenter.New(context.Background(), vcenter.Config{Nodes: nodes})
		if err != nil {
			b.Fatal(err)
		}
		v.Close()
	}
}
