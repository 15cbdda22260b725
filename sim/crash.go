package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/csilab/csilab/driver/record"
	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/san"
)

// Components are the names of all that can crash: controllers and sidecars,
// the driver ("driver-controller", "driver@node-1"), kubelets and registrars,
// and what the backend has: "vcenter" (others of several are "vcenter@NAME"),
// or "csp", arrays ("array1") and their controller nodes ("array1:0").
func (l *Lab) Components() []string {
	l.mu.Lock()
	names := slices.Collect(maps.Keys(l.components))
	l.mu.Unlock()
	for c := range l.controllers {
		if !slices.Contains(names, c) {
			names = append(names, c)
		}
	}
	slices.Sort(names)
	return names
}

// CheckComponent says what can crash when something can't.
func (l *Lab) CheckComponent(name string) error {
	all := l.Components()
	if slices.Contains(all, name) {
		return nil
	}
	return fmt.Errorf("component %q: allowed are %s", name, strings.Join(all, ", "))
}

// CrashLosingState kills a component, and with it what it keeps over a
// restart: the operation records of the driver's controller, the vol_data.json
// of a kubelet's volumes, all tasks of a vCenter that have not begun. What
// keeps nothing (a sidecar, the CSP, a node's driver) is just killed.
func (l *Lab) CrashLosingState(name string) error {
	if err := l.CheckComponent(name); err != nil {
		return err
	}
	l.mu.Lock()
	c := l.components[name]
	l.mu.Unlock()
	if c == nil || c.forget == nil {
		l.Crash(name)
		return nil
	}
	c.mu.Lock()
	down, forget := c.current == nil, c.forget
	c.losing = !down
	c.mu.Unlock()
	if down {
		return forget()
	}
	c.crash()
	return nil
}

// Stop kills a component and keeps it down until StartAgain. Sidecars can't be
// kept down. Errors: no such component.
func (l *Lab) Stop(name string) error {
	c, err := l.component(name)
	if err == nil {
		c.stop()
	}
	return err
}

// StartAgain starts a component that was stopped. Errors: no such component.
func (l *Lab) StartAgain(name string) error {
	c, err := l.component(name)
	if err == nil {
		c.start()
	}
	return err
}

func (l *Lab) component(name string) (*component, error) {
	if err := l.CheckComponent(name); err != nil {
		return nil, err
	}
	l.mu.Lock()
	c := l.components[name]
	l.mu.Unlock()
	if c == nil {
		return nil, fmt.Errorf("component %q is a sidecar: it can crash, but not be kept down", name)
	}
	return c, nil
}

// losesBy says how a component loses what it keeps over a restart.
func (c *component) losesBy(forget func() error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget = forget
}

// forgetRecords takes the driver's operation records away.
func (l *Lab) forgetRecords() error {
	ctx := context.WithoutCancel(l.ctx)
	all, err := l.records.List(ctx)
	for _, r := range all {
		err = errors.Join(err, l.records.Delete(ctx, r.Key))
	}
	if errors.Is(err, record.ErrNotFound) {
		return nil
	}
	return err
}

// forgetVolumeData removes the vol_data.json of all volumes of a node's kubelet
// (kubernetes v1.37.2 pkg/volume/csi/csi_mounter.go:45): without it a kubelet
// that starts again can't tell what is mounted there.
func (n *Node) forgetVolumeData() error {
	var errs []error
	remove := func(dir string) {
		if _, err := n.host.Stat(dir + "/vol_data.json"); err == nil {
			errs = append(errs, n.host.Remove(dir+"/vol_data.json"))
		}
	}
	below := func(dir string, each func(string)) {
		es, _ := n.host.ReadDir(dir)
		for _, e := range es {
			each(dir + "/" + e.Name())
		}
	}
	below(kubeletRoot+"/pods", func(pod string) { below(pod+"/volumes/kubernetes.io~csi", remove) })
	below(kubeletRoot+"/plugins/kubernetes.io/csi/"+n.lab.DriverName(), remove)
	below(kubeletRoot+"/plugins/kubernetes.io/csi/volumeDevices", func(pv string) { remove(pv + "/data") })
	return errors.Join(errs...)
}

// appliance makes a component of something that runs beside the driver and is
// up already. down must do its work at once, and may be called from inside one
// of its calls.
func (l *Lab) appliance(name string, down func(losing bool), up func()) *component {
	first := true
	c := l.supervise(name, func() (*incarnation, error) {
		if !first {
			up()
		}
		first = false
		killed := make(chan struct{})
		var once sync.Once
		return &incarnation{
			fence: func() { once.Do(func() { close(killed) }) },
			run: func(ctx context.Context) error {
				select {
				case <-killed:
				case <-ctx.Done():
				}
				return nil
			},
		}, nil
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.onCrash, c.forget = down, func() error { return nil }
	return c
}

// arrayNodeDown takes the ports of one controller node of an array away: the
// paths over them fail, those over the others go on. The sessions of the REST
// API, which the master node serves, end when that is the node.
//
// Unverified: that it is node 0 that serves. Persistent ports, by which another
// node takes over the names of these ports, are not modelled.
func (b *hpe) arrayNodeDown(a *san.Array, node int, down bool) {
	for _, p := range a.Ports() {
		if p.Node != node || p.Protocol != array.ISCSI && p.Protocol != array.FC {
			continue
		}
		if err := b.san.PortDown(a.Name(), p.PortPos, down); err != nil {
			b.l.log.Debug("port stays", "array", a.Name(), "port", p.PortPos, "err", err)
		}
	}
	if down && node == 0 {
		a.EndSessions()
	}
}

// supervise makes components of the arrays and their controller nodes.
func (b *hpe) supervise() {
	for _, a := range b.san.Arrays() {
		set := func(down bool) {
			if err := b.san.ArrayDown(a.Name(), down); err != nil {
				b.l.log.Error("array", "name", a.Name(), "down", down, "err", err)
			}
		}
		b.l.appliance(a.Name(), func(bool) { set(true) }, func() { set(false) })
		var nodes []int
		for _, p := range a.Ports() {
			if !slices.Contains(nodes, p.Node) {
				nodes = append(nodes, p.Node)
			}
		}
		for _, n := range nodes {
			b.l.appliance(fmt.Sprintf("%s:%d", a.Name(), n), func(bool) { b.arrayNodeDown(a, n, true) }, func() { b.arrayNodeDown(a, n, false) })
		}
	}
}

// supervise makes components of the vCenters.
func (b *vsphere) supervise() {
	for i, s := range b.sites {
		name := "vcenter"
		if i > 0 {
			name += "@" + s.name
		}
		b.l.appliance(name, s.GoDown, s.ComeUp)
	}
}
