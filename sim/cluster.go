package sim

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/driver"
	"github.com/csilab/csilab/driver/record"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/hop"
	"github.com/csilab/csilab/sim/kube"
	"github.com/csilab/csilab/sim/kube/sidecar"
	"github.com/csilab/csilab/sim/kube/sidecars"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/transport"
)

// createBasics makes the objects that exist before anybody asks for a volume:
// the namespace, the driver's CSIDriver object, and a Node object for each
// machine, as the cloud provider leaves it for its kubelet.
func (l *Lab) createBasics(ctx context.Context) error {
	yes, no := true, false
	policy := storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	admin := l.store.Client("admin")
	if err := admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}); err != nil {
		return err
	}
	if err := admin.Create(ctx, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: l.DriverName()},
		Spec: storagev1.CSIDriverSpec{AttachRequired: &yes, PodInfoOnMount: &no, FSGroupPolicy: &policy}}); err != nil {
		return err
	}
	for _, o := range l.backend.objects() {
		if err := admin.Create(ctx, o); err != nil {
			return err
		}
	}
	for _, n := range l.nodes {
		labels := map[string]string{corev1.LabelHostname: n.Name}
		if n.Zone != "" {
			labels[corev1.LabelTopologyZone] = n.Zone
		}
		if n.Region != "" {
			labels[corev1.LabelTopologyRegion] = n.Region
		}
		if err := admin.Create(ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: labels, Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
			Spec:       corev1.NodeSpec{ProviderID: l.backend.providerID(n)},
			Status: corev1.NodeStatus{Capacity: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110")},
				Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("110")}},
		}); err != nil {
			return err
		}
	}
	return nil
}

// startControlPlane starts the core controllers and the sidecars.
func (l *Lab) startControlPlane() error {
	timers := kube.FastTimers()
	set := sidecar.Fast()
	if l.opts.Timers == "real" {
		timers, set = kube.RealTimers(), sidecar.Real()
	}
	if l.hasZones() && !l.opts.TopologyGateOff {
		set.Provisioner.Topology = true
	}
	if d := l.opts.ProvisionTimeout; d > 0 {
		set.Provisioner.Timeout = d
	}
	core := kube.Components(kube.Config{Store: l.store, Timers: timers, DisableForceDetach: l.opts.DisableForceDetach, Log: l.log})
	l.controllers = map[string]bool{}
	for _, name := range append(slices.Collect(maps.Keys(core)), sidecars.Components()...) {
		l.controllers[name] = true
	}
	for name, run := range core {
		l.supervise(name, func() (*incarnation, error) {
			client := l.store.Client(name)
			return &incarnation{fence: client.Fence, run: func(ctx context.Context) error { return run(ctx, client) }}, nil
		})
	}
	pod, err := sidecars.New(sidecars.Config{
		Client: l.store.Client,
		Dial: func(component string) (sidecars.Conn, error) {
			return hop.Dial(hop.Config{Network: l.net, Endpoint: l.controllerSocket(), Hop: ledger.CSI, Component: component, In: l.in, Alter: l.opts.AlterCSI})
		},
		DriverName: l.DriverName(), Set: set, Log: l.log,
	})
	if err != nil {
		return err
	}
	l.sidecars = pod
	l.wg.Go(func() { pod.Run(l.ctx) })
	return nil
}

func (l *Lab) controllerSocket() string {
	if l.dir == nil {
		return "/csi/csi.sock"
	}
	return l.dir.path + "/csi.sock"
}

// startController starts the driver's controller service.
func (l *Lab) startController() {
	c := l.supervise("driver-controller", func() (*incarnation, error) {
		fn := transport.NewFenced(l.net)
		records := &fencedRecords{Store: l.records}
		cfg := driver.Config{
			Mode: driver.Controller, Endpoint: "unix://" + l.controllerSocket(), Version: "lab",
			Dial: fn.DialContext, Listen: fn.Listen, Records: records, StopTimeout: time.Second,
			Log: l.log.With("component", "driver-controller"),
		}
		if err := l.backend.controller(&cfg); err != nil {
			return nil, err
		}
		d, err := driver.New(cfg)
		if err != nil {
			return nil, err
		}
		return &incarnation{fence: func() { records.fence(); fn.Fence() }, run: d.Run}, nil
	})
	c.losesBy(l.forgetRecords)
}

// fencedRecords are the operation records as one incarnation of the driver
// sees them.
type fencedRecords struct {
	record.Store
	gate fault.Fence
}

var errCrashed = errors.New("the driver has crashed")

func (f *fencedRecords) fence() { f.gate.Close() }

// Put implements record.Store.
func (f *fencedRecords) Put(ctx context.Context, r record.Record) error {
	return f.gate.Do(errCrashed, func() error { return f.Store.Put(ctx, r) })
}

// Delete implements record.Store.
func (f *fencedRecords) Delete(ctx context.Context, key string) error {
	return f.gate.Do(errCrashed, func() error { return f.Store.Delete(ctx, key) })
}
