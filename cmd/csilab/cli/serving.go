package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/csilab/csilab/sim/control"
	"github.com/csilab/csilab/sim/csp"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/envfile"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/labfile"
	"github.com/csilab/csilab/sim/lockfile"
	"github.com/csilab/csilab/sim/nodes"
	"github.com/csilab/csilab/sim/san"
	"github.com/csilab/csilab/sim/vcenter"
)

// served is a vCenter to serve.
type served struct {
	name   string
	listen string // HOST:PORT
	cfg    vcenter.Config
}

// serving is what `serve` has running.
type serving struct {
	names    []string
	vcenters []*vcenter.VCenter
	disks    []disk.Store     // of each vCenter
	storage  *labfile.Storage // nil: no arrays
	san      *san.SAN
	csp      *csp.Server
	nodes    *nodes.Nodes // nil: none are made
	faults   *fault.Interceptor
	vms      []string // names of the vCenters' nodes
	control  string   // URL of the control API
	token    string
	closers  []func()
}

func (r *serving) close() {
	if r.faults != nil {
		r.faults.Close() // calls that a rule holds would hold the close up
		r.faults = nil
	}
	for i := len(r.closers) - 1; i >= 0; i-- {
		r.closers[i]()
	}
	r.closers = nil
}

// listen listens on HOST:PORT. An address of IPv4 stays one: all of them
// (0.0.0.0) is not to be shown as [::].
func listen(addr string) (net.Listener, error) {
	network := "tcp"
	if host, _, err := net.SplitHostPort(addr); err == nil {
		if ip := net.ParseIP(host); ip != nil && ip.To4() != nil && strings.Contains(host, ".") {
			network = "tcp4"
		}
	}
	return net.Listen(network, addr)
}

// codeOfFile tells a path that can't be, which is the user's, from a disk that
// is full, read-only or not ours, which is the machine's.
func codeOfFile(err error) int {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EROFS), errors.Is(err, syscall.EIO), errors.Is(err, fs.ErrPermission):
		return ExitEnvironment
	case ofState(err):
		return ExitEnvironment
	}
	return ExitUsage
}

// refusedStart is the error of a server that did not start, with its exit code.
func refusedStart(err error) error {
	if ofState(err) {
		return exitf(ExitEnvironment, "--state: %w", err)
	}
	return &exitError{codeOfFile(err), err}
}

// ofState tells errors of state directories.
func ofState(err error) bool {
	var v *vcenter.StateError
	var s *san.StateError
	return errors.As(err, &v) || errors.As(err, &s)
}

// startServing starts the vCenters, and the arrays where there are any. Each has its state in f.state, below its
// name where there are several, arrays below "arrays"; fail is called when that can't be written any
// longer. Errors carry their exit code.
func startServing(ctx context.Context, plan []served, arrays *labfile.Storage, f serveFlags, log *slog.Logger, fail func(error)) (_ *serving, err error) {
	r := &serving{faults: &fault.Interceptor{Plan: &fault.Plan{Seed: f.planSeed(arrays)}}}
	world := &servedWorld{r: r}
	r.faults.World = world
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	stateDir := f.state
	if stateDir != "" {
		if err := os.MkdirAll(stateDir, 0o700); err != nil {
			return nil, exitf(codeOfFile(err), "--state %q: %w", stateDir, err)
		}
		release, err := lockfile.Acquire(filepath.Join(stateDir, "serve.lock"))
		if err != nil {
			return nil, exitf(ExitEnvironment, "--state %q: %w", stateDir, err)
		}
		r.closers = append(r.closers, release)
	}
	if f.hosts {
		if err := r.startNodes(f.seed, log); err != nil {
			return nil, err
		}
	}
	for _, p := range plan {
		cfg := p.cfg
		cfg.TLS, cfg.Log, cfg.OnStateError, cfg.In = true, log, fail, r.faults
		var store disk.Store = disk.NewMemory()
		if stateDir != "" {
			cfg.StateDir = stateDir
			if len(plan) > 1 {
				cfg.StateDir = filepath.Join(stateDir, p.name)
			}
			if store, err = disk.NewFiles(filepath.Join(cfg.StateDir, "disks")); err != nil {
				return nil, exitf(ExitEnvironment, "--state %q: %w", stateDir, err)
			}
		} else if r.nodes != nil {
			if store, err = r.nodes.Store(p.name); err != nil {
				return nil, exitf(ExitEnvironment, "nodes: %w", err)
			}
		}
		r.closers = append(r.closers, func() { store.Close() })
		cfg.Disks = store
		if r.nodes != nil {
			cfg.Hardware = r.nodes.Hardware(store)
		}
		l, err := listen(p.listen)
		if err != nil {
			return nil, exitf(ExitEnvironment, "listen on %q for %s: %w", p.listen, p.name, err)
		}
		cfg.Listener = l
		v, err := vcenter.New(ctx, cfg)
		if err != nil {
			l.Close()
			return nil, refusedStart(err)
		}
		r.closers = append(r.closers, v.Close)
		r.names, r.vcenters, r.disks = append(r.names, p.name), append(r.vcenters, v), append(r.disks, store)
		for _, n := range cfg.Nodes {
			r.vms = append(r.vms, n.Name)
			if err := r.addNode(ctx, nodes.Machine{Name: n.Name, BIOSUUID: v.VMUUID(n.Name)}); err != nil {
				return nil, err
			}
		}
	}
	if arrays != nil {
		if err := r.startArrays(ctx, *arrays, stateDir, log, fail); err != nil {
			return nil, err
		}
	}
	if err := r.addServers(ctx, f.nodes, f.noPathRetry); err != nil {
		return nil, err
	}
	r.closers = append(r.closers, world.close)
	if err := r.startControl(log); err != nil {
		return nil, err
	}
	if stateDir != "" {
		// For who finds the directory and has no env file.
		path := filepath.Join(stateDir, "control.env")
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a run that was killed; it keeps its mode
			return nil, exitf(codeOfFile(err), "--state %q: %w", stateDir, err)
		}
		if err := os.WriteFile(path, fmt.Appendf(nil, "%s=%s\n%s=%s\n", envControlURL, r.control, envControlToken, r.token), 0o600); err != nil {
			return nil, exitf(ExitEnvironment, "--state %q: %w", stateDir, err)
		}
		r.closers = append(r.closers, func() { os.Remove(path) })
	}
	return r, nil
}

// startControl serves the control API.
func (r *serving) startControl(log *slog.Logger) (err error) {
	r.token = control.NewToken()
	var sources []control.Source
	for i, v := range r.vcenters {
		sources = append(sources, control.Source{Name: r.names[i], VCenter: v})
	}
	h := control.WithFaults(r.token, r.faultsServed(), control.Handler(r.token, sources, r.san, r.nodesServed()))
	var stop func()
	if r.control, stop, err = serveControl(h, log); err != nil {
		return err
	}
	r.closers = append(r.closers, stop)
	return nil
}

// serveControl serves a control API on a free port of loopback.
func serveControl(h http.Handler, log *slog.Logger) (url string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, exitf(ExitEnvironment, "control API: %w", err)
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("control API", "err", err)
		}
	}()
	return "http://" + l.Addr().String(), func() { s.Close(); <-done }, nil
}

// clusterID is the driver's cluster-id in the configuration that is written.
const clusterID = "csilab"

// writeEnv writes the environment of a client, and what is ready for a driver
// beside it.
func (r *serving) writeEnv(files *envFiles) error {
	var env [][2]string
	if len(r.vcenters) > 0 {
		conf := files.beside(vcenter.ConfName)
		if err := files.write(conf, []byte(vcenter.Conf(clusterID, r.vcenters...))); err != nil {
			return err
		}
		env = append(env, vcenter.Env(conf, r.names, r.vcenters)...)
	}
	if r.san != nil {
		e, err := r.arraysEnv(files)
		if err != nil {
			return err
		}
		env = append(env, e...)
	}
	if r.nodes != nil {
		var names []string
		for _, n := range r.nodes.List() {
			names = append(names, n.Name)
		}
		env = append(env, [2]string{"CSILAB_NODES", strings.Join(names, ",")})
	}
	return files.write(files.env, envfile.Lines(append(env, [2]string{envControlURL, r.control}, [2]string{envControlToken, r.token})))
}
