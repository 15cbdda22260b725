package cli

import (
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault/faultfile"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/yamlfile"
)

// arm reads the fault file of --faults; what it returns arms it in a lab. Each
// lab gets rules of its own, for they count. A plan that the lab of one of the
// backends can't have is refused at once.
func (f runFlags) arm(backends []sim.Options) (func(*sim.Lab) error, error) {
	if f.faults == "" {
		return nil, nil
	}
	b, err := yamlfile.Read(f.faults)
	if err != nil {
		return nil, exitf(ExitUsage, "--faults: %w", err)
	}
	if _, err := faultfile.Parse(f.faults, b, faultfile.Lab{}); err != nil {
		return nil, &exitError{ExitUsage, err}
	}
	for _, o := range backends {
		o.Bubble = o.Bubble || f.time == "bubble"
		world, hops := o.FaultWorld()
		if _, err := faultfile.Parse(f.faults, b, faultfile.Lab{World: world, Hops: texts(hops)}); err != nil {
			return nil, exitf(ExitUsage, "--faults with --backend %s: %w", o.System(), err)
		}
	}
	return func(l *sim.Lab) error {
		rules, err := faultfile.Parse(f.faults, b, faultfile.Lab{World: l, Hops: texts(l.Hops()), Nodes: l.Nodes()})
		if err != nil {
			return err
		}
		l.InjectAll(rules)
		return nil
	}, nil
}

func texts(hops []ledger.Hop) (out []string) {
	for _, h := range hops {
		out = append(out, string(h))
	}
	return out
}
