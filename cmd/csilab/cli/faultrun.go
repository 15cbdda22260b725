package cli

import (
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault/faultfile"
	"github.com/csilab/csilab/sim/yamlfile"
)

// arm reads the fault file of --faults; what it returns arms it in a lab. Each
// lab gets rules of its own, for they count.
func (f runFlags) arm() (func(*sim.Lab) error, error) {
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
	return func(l *sim.Lab) error {
		var hops []string
		for _, h := range l.Hops() {
			hops = append(hops, string(h))
		}
		rules, err := faultfile.Parse(f.faults, b, faultfile.Lab{World: l, Hops: hops, Nodes: l.Nodes()})
		if err != nil {
			return err
		}
		l.InjectAll(rules)
		return nil
	}, nil
}
