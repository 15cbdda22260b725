package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/csilab/csilab/sim/control"
	"github.com/csilab/csilab/sim/envfile"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/fault/faultfile"
	"github.com/csilab/csilab/sim/ledger"
)

// proxied is what stands around a proxy: nothing that faults can change.
type proxied struct{}

// proxyLab is what rules of a proxy are checked against.
func proxyLab() faultfile.Lab {
	return faultfile.Lab{World: proxied{}, Hops: texts([]ledger.Hop{ledger.CSI, ledger.Registration})}
}

// armFile arms the rules of --faults.
func (f proxyFlags) armFile(plan *fault.Plan) (armed []*fault.Armed, err error) {
	if f.faults == "" {
		return nil, nil
	}
	rules, err := faultfile.Load(f.faults, proxyLab())
	if err != nil {
		return nil, exitf(ExitUsage, "--faults: %w", err)
	}
	for _, r := range rules {
		armed = append(armed, plan.Arm(r))
	}
	return armed, nil
}

// claim takes the file of --env; nil is none.
func (f proxyFlags) claim() (*envFiles, error) {
	if f.env == "" {
		return nil, nil
	}
	return claimEnv(f.env)
}

// serveFaults lets csilab fault reach the plan, where there is a file that says
// how. end must be called.
func (f proxyFlags) serveFaults(files *envFiles, plan *fault.Plan) (end func(), err error) {
	if files == nil {
		return func() {}, nil
	}
	token := control.NewToken()
	h := control.WithFaults(token, control.Faults{Plan: plan, Lab: proxyLab()}, control.Handler(token, nil, nil, nil))
	url, end, err := serveControl(h, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	if err := files.write(files.env, envfile.Lines([][2]string{{envControlURL, url}, {envControlToken, token}})); err != nil {
		end()
		return nil, exitf(codeOfFile(err), "--env %q: %w", f.env, err)
	}
	return end, nil
}

// unfired tells which rules of --faults never fired; those that had to are an
// error. Those that were cleared, and those that were injected, are the business of
// who did so.
func (f proxyFlags) unfired(plan *fault.Plan, armed []*fault.Armed) error {
	var errs []error
	for _, r := range plan.Unfired() {
		if slices.Contains(armed, r) {
			errs = append(errs, fmt.Errorf("%s: rule %q never fired", f.faults, r.Name))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return &exitError{ExitFailed, errors.Join(errs...)}
}
