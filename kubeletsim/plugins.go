package kubeletsim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/connectivity"
	"k8s.io/apimachinery/pkg/util/version"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/csilab/csilab/sim/hop"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/transport"
)

// driver is a CSI driver that has registered.
type driver struct {
	endpoint string
	version  *version.Version
}

// plugins is kubelet's plugin manager as a plain state machine
// (pkg/kubelet/pluginmanager): the sockets that are there, those that are
// registered, and the operations on them.
type plugins struct {
	first, most time.Duration
	wanted      map[string]int        // socket -> incarnation: a socket that was made anew counts as another
	registered  map[string]registered // socket ->
	ops         map[string]*pluginOp  // socket ->
	next        int
}

type registered struct {
	incarnation    int
	name, endpoint string
}

type pluginOp struct {
	running bool
	backOff backOff
}

type pluginStep struct {
	socket      string
	incarnation int
	remove      bool
	was         registered
}

func newPlugins(first, most time.Duration) *plugins {
	return &plugins{first: first, most: most, wanted: map[string]int{}, registered: map[string]registered{}, ops: map[string]*pluginOp{}}
}

func (p *plugins) event(e transport.Event) {
	switch e.Op {
	case transport.Created:
		p.next++
		p.wanted[e.Path] = p.next
	case transport.Removed:
		delete(p.wanted, e.Path)
	}
}

// decide gives the steps to start now and marks them as running
// (pkg/kubelet/pluginmanager/reconciler/reconciler.go, reconcile: what is to go
// goes first). The back-off belongs to the socket's path, so that a stale
// socket delays the one that replaces it
// (operationexecutor/operation_executor.go:106).
func (p *plugins) decide(now time.Time) (start []pluginStep, wake time.Time) {
	begin := func(s pluginStep) {
		op := p.ops[s.socket]
		if op == nil {
			op = &pluginOp{}
			p.ops[s.socket] = op
		}
		if op.running {
			return
		}
		if at := op.backOff.until(); op.backOff.wait > 0 && now.Before(at) {
			if wake.IsZero() || at.Before(wake) {
				wake = at
			}
			return
		}
		op.running = true
		start = append(start, s)
	}
	for _, s := range sortedKeys(p.registered) {
		r := p.registered[s]
		if inc, ok := p.wanted[s]; !ok || inc != r.incarnation {
			begin(pluginStep{socket: s, remove: true, was: r})
		}
	}
	for _, s := range sortedKeys(p.wanted) {
		if r, ok := p.registered[s]; !ok || r.incarnation != p.wanted[s] {
			begin(pluginStep{socket: s, incarnation: p.wanted[s]})
		}
	}
	return start, wake
}

func (p *plugins) end(socket string, err error, now time.Time) {
	op := p.ops[socket]
	if err == nil {
		delete(p.ops, socket)
		return
	}
	op.running = false
	op.backOff.failed(now, p.first, p.most)
}

// runPluginStep is one registration or its undoing.
func (k *Kubelet) runPluginStep(ctx context.Context, s pluginStep) error {
	if s.remove {
		k.mu.Lock()
		delete(k.plugins.registered, s.socket)
		k.mu.Unlock()
		k.deregister(ctx, s.was.name)
		return nil
	}
	return k.registerPlugin(ctx, s)
}

// registerPlugin is pkg/kubelet/pluginmanager/operationexecutor/operation_generator.go:59.
func (k *Kubelet) registerPlugin(ctx context.Context, s pluginStep) error {
	conn, err := hop.Dial(hop.Config{Network: k.cfg.Network, Endpoint: s.socket, Hop: ledger.Registration,
		Component: "kubelet@" + k.cfg.NodeName, Node: k.cfg.NodeName, In: k.cfg.In})
	if err != nil {
		return fmt.Errorf("RegisterPlugin error -- dial failed at socket %s, err: %v", s.socket, err)
	}
	defer conn.Close()
	if err := waitConnected(ctx, conn, k.t.RegistrationDial); err != nil {
		return fmt.Errorf("RegisterPlugin error -- dial failed at socket %s, err: failed to dial socket %s, err: %v", s.socket, s.socket, err)
	}
	client := registration.NewRegistrationClient(conn)
	notify := func(ok bool, msg string) error {
		ctx, cancel := context.WithTimeout(ctx, k.t.RegistrationNotify)
		defer cancel()
		if _, err := client.NotifyRegistrationStatus(ctx, &registration.RegistrationStatus{PluginRegistered: ok, Error: msg}); err != nil {
			return fmt.Errorf("%s: %w", msg, err)
		}
		if msg != "" {
			return errors.New(msg)
		}
		return nil
	}
	refuse := func(msg string) error {
		if err := notify(false, msg); err != nil {
			return fmt.Errorf("RegisterPlugin error -- failed to send error at socket %s, err: %v", s.socket, err)
		}
		return errors.New(msg)
	}

	ictx, cancel := context.WithTimeout(ctx, k.t.RegistrationInfo)
	info, err := client.GetInfo(ictx, &registration.InfoRequest{})
	cancel()
	if err != nil {
		return fmt.Errorf("RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket %s, err: %v", s.socket, err)
	}
	if info.Type != registration.CSIPlugin {
		return refuse(fmt.Sprintf("RegisterPlugin error -- no handler registered for plugin type: %s at socket %s", info.Type, s.socket))
	}
	endpoint := info.Endpoint
	if endpoint == "" {
		endpoint = s.socket
	}
	if _, err := k.chooseVersion("ValidatePlugin", info.Name, info.SupportedVersions); err != nil {
		return refuse(fmt.Sprintf("RegisterPlugin error -- plugin validation failed with err: validation failed for CSI Driver %s at endpoint %s: %v", info.Name, endpoint, err))
	}
	// Known as registered before the driver is asked, so that a removal meanwhile
	// is handled as one.
	k.mu.Lock()
	k.plugins.registered[s.socket] = registered{s.incarnation, info.Name, endpoint}
	k.mu.Unlock()
	if err := k.registerDriver(ctx, info.Name, endpoint, info.SupportedVersions); err != nil {
		k.forget(s.socket)
		return notify(false, fmt.Sprintf("RegisterPlugin error -- plugin registration failed with err: %v", err))
	}
	if err := notify(true, ""); err != nil {
		k.forget(s.socket)
		k.deregister(ctx, info.Name)
		return fmt.Errorf("RegisterPlugin error -- failed to send registration status at socket %s, err: %v", s.socket, err)
	}
	k.log.Info("CSI driver registered", "driver", info.Name, "endpoint", endpoint)
	return nil
}

func (k *Kubelet) forget(socket string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.plugins.registered, socket)
}

// waitConnected blocks until the connection is up, as grpc.WithBlock does.
func waitConnected(ctx context.Context, c *hop.Conn, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		st := c.GetState()
		if st == connectivity.Ready {
			return nil
		}
		c.Connect()
		if !c.WaitForStateChange(ctx, st) {
			return context.Cause(ctx)
		}
	}
}

// chooseVersion picks the highest 1.x (pkg/volume/csi/csi_plugin.go,
// validateVersions). A driver of the same name that is registered already must
// be older.
func (k *Kubelet) chooseVersion(caller, name string, versions []string) (*version.Version, error) {
	if len(versions) == 0 {
		return nil, csiErrorf("%s for CSI driver %q failed. Plugin returned an empty list for supported versions", caller, name)
	}
	v, err := version.HighestSupportedVersion(versions)
	if err != nil {
		return nil, csiErrorf("%s for CSI driver %q failed. None of the versions specified %q are supported. err=%v", caller, name, versions, err)
	}
	k.mu.Lock()
	old, ok := k.drivers[name]
	k.mu.Unlock()
	if ok && !old.version.LessThan(v) {
		return nil, csiErrorf("%s for CSI driver %q failed. Another driver with the same name is already registered with a higher supported version: %q", caller, name, old.version)
	}
	return v, nil
}

// registerDriver asks the driver for its node info and writes it to the API
// server (pkg/volume/csi/csi_plugin.go, RegisterPlugin).
func (k *Kubelet) registerDriver(ctx context.Context, name, endpoint string, versions []string) error {
	v, err := k.chooseVersion("RegisterPlugin", name, versions)
	if err != nil {
		return err
	}
	k.mu.Lock()
	k.drivers[name] = driver{endpoint, v}
	k.mu.Unlock()
	c, err := k.client(name)
	if err != nil {
		return err
	}
	cctx, cancel := context.WithTimeout(ctx, k.t.CSICall)
	defer cancel()
	info, err := c.nodeGetInfo(cctx)
	if err == nil {
		err = k.installDriver(ctx, name, info.GetNodeId(), info.GetMaxVolumesPerNode(), info.GetAccessibleTopology().GetSegments())
	}
	if err != nil {
		k.deregister(ctx, name)
	}
	return err
}

// deregister forgets a driver here and in the API server.
func (k *Kubelet) deregister(ctx context.Context, name string) {
	k.mu.Lock()
	delete(k.drivers, name)
	k.mu.Unlock()
	if err := k.uninstallDriver(ctx, name); err != nil {
		k.log.Error("registrationHandler.DeRegisterPlugin failed", "driver", name, "error", err)
	}
}

// RegisteredDrivers lists the drivers that volumes can be mounted with now.
func (k *Kubelet) RegisteredDrivers() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return sortedKeys(k.drivers)
}

// ignored says whether a name in the registry is none of kubelet's business
// (pluginwatcher/plugin_watcher.go, handleCreateEvent).
func ignored(name string) bool { return strings.HasPrefix(name, ".") }
