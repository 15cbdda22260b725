package sim

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/csilab/csilab/sim/host"
)

// newRealHost makes a node with real mounts, and says where its kubelet
// directory is for this process.
func (l *Lab) newRealHost(ctx context.Context, m machine, dir string) (host.Host, string, error) {
	r, err := host.NewReal(ctx, host.RealConfig{Name: m.name, Seed: l.opts.Seed, BIOSUUID: m.bios, Dir: dir, SAN: m.san, Adapters: m.adapters, NoPathRetry: l.opts.NoPathRetry, Interceptor: l.in, Component: "driver@" + m.name, Log: l.log})
	if err != nil {
		return nil, "", err
	}
	return r, r.SocketRoot(), nil
}

// spawnDriverProcess starts the driver as a process of the node, with nothing
// but flags and environment, as a cluster does.
func (n *Node) spawnDriverProcess() (*incarnation, error) {
	r := n.host.(*host.Real)
	cfg := n.driverConfig()
	args := []string{"--mode", "node", "--endpoint", cfg.Endpoint, "--node-name", n.Name}
	if cfg.MaxVolumesPerNode > 0 {
		args = append(args, "--max-volumes-per-node", fmt.Sprint(cfg.MaxVolumesPerNode))
	}
	if cfg.TopologyFile != "" {
		args = append(args, "--topology-file", cfg.TopologyFile)
	}
	args = append(args, n.lab.backend.nodeArgs(n)...)
	argv, env, err := host.ChildCommand("csi-driver", args...)
	if err != nil {
		return nil, err
	}
	// What a driver that is killed leaves in its temporary directory goes with
	// the node, as with a container.
	env = append(env, "TMPDIR="+filepath.Dir(r.SocketRoot()))
	var out lastLines
	p, err := r.StartProcess(n.lab.ctx, argv, env, &out, &out)
	if err != nil {
		return nil, err
	}
	return &incarnation{
		fence: p.Kill,
		run: func(ctx context.Context) error {
			stop := context.AfterFunc(ctx, p.Kill)
			defer stop()
			err := p.Wait()
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("driver process: %w\n%s", errors.Join(errors.New("ended"), err), out.String())
		},
	}, nil
}
