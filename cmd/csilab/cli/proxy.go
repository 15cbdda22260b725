package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/hop"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/transport"
)

type proxyFlags struct {
	listen, driver, component, node, ledger, faults, env string
	quiet                                                bool
}

func newProxy(s Streams) *cobra.Command {
	var f proxyFlags
	cmd := &cobra.Command{
		Use:   "proxy --listen SOCKET --driver SOCKET",
		Short: "Stand between a driver and its callers, and write down what they say",
		Long: `Listens on a unix socket and passes each call on to a driver's, ours or any other,
until SIGINT or SIGTERM. Calls of CSI and of plugin registration are written to the
ledger, one line of JSON each, and pass the rules of a fault file and those that
"csilab fault inject" brings; what csilab does not know (services, fields, metadata,
streams) goes through as it is. Secrets are not written.

Exit codes: 0 after a signal, 1 a rule of --faults never fired, 2 usage, 3 the socket
or a file can't be.`,
		Example: `  my-driver --endpoint unix:///tmp/driver.sock &
  csilab proxy --listen /tmp/csi.sock --driver /tmp/driver.sock --ledger calls.jsonl
  csilab proxy --listen /tmp/csi.sock --driver /tmp/driver.sock --faults lost-replies.yaml --env proxy.env &
  csilab fault list --env proxy.env`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runProxy(cmd.Context(), s, f) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.listen, "listen", "", "unix socket for callers; one that a dead process left is replaced")
	fl.StringVar(&f.driver, "driver", "", "unix socket of the driver, which may come later")
	fl.StringVar(&f.component, "component", "co", "who calls, as the ledger says it")
	fl.StringVar(&f.node, "node", "", "node that the driver serves, as the ledger says it")
	fl.StringVar(&f.ledger, "ledger", "", "file for the ledger (default: standard output)")
	fl.StringVar(&f.faults, "faults", "", "fault file that is armed from the beginning: hops csi and registration")
	fl.StringVar(&f.env, "env", "", "file for the address by which csilab fault list, inject, clear and release reach the proxy; it is removed at the end")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "write no ledger")
	return cmd
}

// socketOf checks the path of a unix socket.
func socketOf(flag, path string) error {
	switch {
	case path == "":
		return exitf(ExitUsage, "%s is required: the path of a unix socket", flag)
	case len(path) > 100:
		return exitf(ExitUsage, "%s %q: has %d bytes, allowed are up to 100 for a unix socket", flag, path, len(path))
	}
	return nil
}

// proxyKeeps is how many calls a proxy keeps in memory.
const proxyKeeps = 1000

// same says whether two paths lead to one file.
func same(a, b string) bool {
	if place(a) == place(b) { // of a socket that is not there yet, too
		return true
	}
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// place is a file's name in its real directory.
func place(p string) string {
	abs, err := filepath.Abs(p)
	if err != nil {
		return filepath.Clean(p)
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return abs
	}
	return filepath.Join(dir, filepath.Base(abs))
}

func runProxy(ctx context.Context, s Streams, f proxyFlags) error {
	if err := errors.Join(socketOf("--listen", f.listen), socketOf("--driver", f.driver)); err != nil {
		return &exitError{ExitUsage, err}
	}
	if same(f.listen, f.driver) {
		return exitf(ExitUsage, "--listen %q and --driver %q are one file: a proxy needs a socket of its own", f.listen, f.driver)
	}
	if f.faults != "" && f.ledger != "" && same(f.ledger, f.faults) {
		return exitf(ExitUsage, "--ledger %q and --faults %q are one file", f.ledger, f.faults)
	}
	if fi, err := os.Stat(filepath.Dir(f.listen)); err != nil || !fi.IsDir() {
		return exitf(ExitUsage, "--listen %q: its directory is not there", f.listen)
	}
	plan := &fault.Plan{Seed: 1}
	armed, err := f.armFile(plan)
	if err != nil {
		return err
	}
	files, err := f.claim()
	if err != nil {
		return err
	}
	defer files.close()
	out := s.Out
	var file *ledgerFile
	if f.ledger != "" {
		if file, err = openLedger(f.ledger); err != nil {
			return exitf(codeOfFile(err), "--ledger %q: %w", f.ledger, err)
		}
		defer file.Close()
		out = file
	}
	l := &ledger.Ledger{}
	l.Limit(proxyKeeps, nil) // what it holds is read by nobody: the lines are the ledger
	lines := make(chan ledger.Entry, 256)
	if !f.quiet {
		l.Subscribe(func(e ledger.Entry) { lines <- e })
	}
	in := &fault.Interceptor{Ledger: l, Plan: plan, Classify: hop.CodeOf, World: proxied{}}
	p, err := hop.NewProxy(hop.ProxyConfig{Network: transport.Wall{}, Listen: f.listen, Driver: f.driver, Component: f.component, Node: f.node, In: in})
	if err != nil {
		file.undo()
		return exitf(ExitEnvironment, "--listen %q: %w", f.listen, err)
	}
	var lost error // that a line was not written
	written := make(chan struct{})
	go func() {
		defer close(written)
		if err := file.empty(); err != nil {
			lost = err
		}
		enc := json.NewEncoder(out)
		for e := range lines {
			if err := enc.Encode(e); err != nil && lost == nil {
				lost = err
				fmt.Fprintln(s.Err, "csilab: ledger:", err)
			}
		}
	}()
	end, err := f.serveFaults(files, in.Plan)
	if err != nil {
		err = errors.Join(err, p.Close())
		close(lines)
		<-written
		return err
	}
	defer end()
	fmt.Fprintf(s.Err, "csilab: %s passes on to %s\n", f.listen, f.driver)
	select {
	case <-ctx.Done():
	case <-p.Done():
	}
	in.Close()
	err = p.Close()
	close(lines)
	<-written
	switch {
	case err != nil:
		return exitf(ExitUnknown, "%w", err)
	case lost != nil:
		return exitf(ExitEnvironment, "ledger: %w", lost)
	}
	return f.unfired(in.Plan, armed)
}
