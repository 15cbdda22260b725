package cli

import (
	"errors"
	"fmt"
	"log/slog"

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
func (f proxyFlags) armFile(plan *fault.Plan) error {
	if f.faults == "" {
		return nil
	}
	rules, err := faultfile.Load(f.faults, proxyLab())
	if err != nil {
		return exitf(ExitUsage, "--faults: %w", err)
	}
	for _, r := range rules {
		plan.Arm(r)
	}
	return nil
}

// serveFaults lets csilab fault reach the plan, where --env is given. stop must be
// called.
func (f proxyFlags) serveFaults(plan *fault.Plan) (stop func(), err error) {
	if f.env == "" {
		return func() {}, nil
	}
	files, err := claimEnv(f.env)
	if err != nil {
		return nil, err
	}
	token := control.NewToken()
	h := control.WithFaults(token, control.Faults{Plan: plan, Lab: proxyLab()}, control.Handler(token, nil, nil, nil))
	url, end, err := serveControl(h, slog.New(slog.DiscardHandler))
	if err == nil {
		if err = files.write(files.env, envfile.Lines([][2]string{{envControlURL, url}, {envControlToken, token}})); err == nil {
			return func() { end(); files.close() }, nil
		}
		end()
		err = exitf(codeOfFile(err), "--env %q: %w", f.env, err)
	}
	files.close()
	return nil, err
}

// unfired tells which rules of --faults never fired; those that had to are an
// error.
func (f proxyFlags) unfired(plan *fault.Plan) error {
	if f.faults == "" {
		return nil
	}
	var errs []error
	for _, r := range plan.Unfired() {
		errs = append(errs, fmt.Errorf("%s: rule %q never fired", f.faults, r.Name))
	}
	if len(errs) == 0 {
		return nil
	}
	return &exitError{ExitFailed, errors.Join(errs...)}
}
