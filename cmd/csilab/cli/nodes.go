package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/control"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/nodes"
)

// startNodes makes the place for real nodes.
func (r *serving) startNodes(seed uint64, log *slog.Logger) error {
	n, err := nodes.New(sim.Options{}.WithDefaults().StateRoot, max(seed, 1), log)
	if err != nil {
		return exitf(ExitEnvironment, "--hosts: %w", err)
	}
	r.nodes = n
	r.closeNodes()
	return nil
}

// closeNodes has the nodes closed before what was started up to now.
func (r *serving) closeNodes() { r.closers = append(r.closers, func() { r.nodes.Close() }) }

func (r *serving) addNode(ctx context.Context, m nodes.Machine) error {
	if r.nodes == nil {
		return nil
	}
	if err := r.nodes.Add(ctx, m); err != nil {
		return exitf(ExitEnvironment, "--hosts: %w", err)
	}
	return nil
}

// addServers makes the nodes that are on the storage network, with adapters for
// iSCSI and Fibre Channel.
func (r *serving) addServers(ctx context.Context, count int, retry host.NoPathRetry) error {
	if r.nodes == nil {
		return nil
	}
	defer r.closeNodes()
	if r.san == nil {
		return nil
	}
	name := "node"
	if len(r.vcenters) > 0 {
		name = "server" // the VMs have the other name
	}
	for i := range count {
		m := nodes.Machine{Name: fmt.Sprintf("%s-%d", name, i+1), Adapters: host.Adapters{IQN: fmt.Sprintf("iqn.1994-05.com.redhat:%012x", 0x5eed00000000+i+1),
			WWPNs: []string{fmt.Sprintf("100000109b00%04x", i+1), fmt.Sprintf("100000109b01%04x", i+1)}, Networks: []string{fmt.Sprintf("10.0.0.%d/24", 11+i)}}}
		m.SAN, m.NoPathRetry = r.san.For(m.Name, m.Adapters), retry
		if err := r.addNode(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// nodesServed are the nodes for the control API.
func (r *serving) nodesServed() control.Nodes {
	if r.nodes == nil {
		return nil
	}
	return r.nodes
}

// tellNodes says which nodes there are.
func (r *serving) tellNodes(w io.Writer) {
	if r.nodes == nil {
		return
	}
	for _, n := range r.nodes.List() {
		fmt.Fprintf(w, "csilab: %s: its /var/lib/kubelet is %s\n", n.Name, n.KubeletDir)
	}
}
