package cli

import (
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/fault/faultfile"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/yamlfile"
)

// plan is the fault file of --faults.
type plan struct {
	file string
	b    []byte
}

// readPlan reads a fault file, and refuses one that is wrong for any lab.
func readPlan(file string) (p plan, err error) {
	p.file = file
	if p.b, err = yamlfile.Read(file); err != nil {
		return p, exitf(ExitUsage, "--faults: %w", err)
	}
	if _, err := faultfile.Parse(file, p.b, faultfile.Lab{}); err != nil {
		return p, &exitError{ExitUsage, err}
	}
	return p, nil
}

// fits refuses what a lab with some options can't have.
func (p plan) fits(o sim.Options) error {
	world, hops := o.FaultWorld()
	if _, err := faultfile.Parse(p.file, p.b, faultfile.Lab{World: world, Hops: texts(hops)}); err != nil {
		return exitf(ExitUsage, "--faults with --backend %s: %w", o.System(), err)
	}
	return nil
}

// rules are new ones for a lab, for they count.
func (p plan) rules(l *sim.Lab) ([]fault.Rule, error) {
	return faultfile.Parse(p.file, p.b, faultfile.Lab{World: l, Hops: texts(l.Hops()), Nodes: l.Nodes()})
}

// arm reads the fault file of --faults; what it returns arms it in a lab. A plan
// that the lab of one of the backends can't have is refused at once.
func (f runFlags) arm(backends []sim.Options) (func(*sim.Lab) error, error) {
	if f.faults == "" {
		return nil, nil
	}
	p, err := readPlan(f.faults)
	if err != nil {
		return nil, err
	}
	for _, o := range backends {
		o.Bubble = o.Bubble || f.time == "bubble"
		if err := p.fits(o); err != nil {
			return nil, err
		}
	}
	return func(l *sim.Lab) error {
		rules, err := p.rules(l)
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
