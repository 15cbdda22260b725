package cli

import (
	"github.com/csilab/csilab/scenarios"
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
	rules, err := faultfile.Parse(file, p.b, faultfile.Lab{})
	if err != nil {
		return p, &exitError{ExitUsage, err}
	}
	for _, r := range rules {
		if _, gate := r.Do.(*fault.Gate); gate {
			return p, exitf(ExitUsage, "--faults: %s: rule %q: do is gate, which `csilab fault release` opens in a running `csilab serve`: here nobody would", file, r.Name)
		}
	}
	return p, nil
}

// fits refuses what a lab with some options can't have.
func (p plan) fits(o sim.Options) error {
	world, hops, nodes := o.FaultWorld()
	_, err := faultfile.Parse(p.file, p.b, faultfile.Lab{World: world, Hops: texts(hops), Nodes: nodes})
	return err
}

// rules are new ones for a lab, for they count.
func (p plan) rules(l *sim.Lab) ([]fault.Rule, error) {
	return faultfile.Parse(p.file, p.b, faultfile.Lab{World: l, Hops: texts(l.Hops()), Nodes: l.Nodes()})
}

// arm reads the fault file of --faults, and refuses one that a lab of those that
// would be started can't have: with the options of all, or, where scenarios are
// selected, with those of each of them.
func (f runFlags) arm(all []sim.Options, cfgs []scenarios.Config) (func(*sim.Lab) error, error) {
	if f.faults == "" {
		return nil, nil
	}
	p, err := readPlan(f.faults)
	if err != nil {
		return nil, err
	}
	for i, o := range all {
		o.Bubble = o.Bubble || f.time == "bubble"
		wrong := p.fits(o)
		if len(cfgs) > 0 && len(cfgs[i].Labs()) > 0 {
			fits := wrong == nil
			wrong = nil
			for _, l := range cfgs[i].Labs() {
				l.Options.Bubble = o.Bubble
				if err := p.fits(l.Options); err != nil && fits {
					return nil, exitf(ExitUsage, "--faults with --backend %s, scenario %s (--focus leaves it out): %w", o.System(), l.Scenario, err)
				} else if err != nil {
					wrong = err
				}
			}
		}
		if wrong != nil {
			return nil, exitf(ExitUsage, "--faults with --backend %s: %w", o.System(), wrong)
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
