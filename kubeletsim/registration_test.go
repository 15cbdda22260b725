package kubeletsim_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/csilab/csilab/kubeletsim/registrar"
	"github.com/csilab/csilab/sim/kube/store"
)

const regSocket = kubeletDir + "/plugins_registry/" + driverName + "-reg.sock"

// plugin is a registration socket with scripted answers.
type plugin struct {
	registration.UnimplementedRegistrationServer
	info *registration.PluginInfo

	mu    sync.Mutex
	heard []string // "ok" or the error
	asked []time.Time
}

func (p *plugin) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, time.Now())
	return p.info, nil
}

func (p *plugin) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.PluginRegistered {
		p.heard = append(p.heard, "ok")
	} else {
		p.heard = append(p.heard, s.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func (p *plugin) said() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.heard)
}

// offer serves the plugin at a socket until the returned function is called.
func (r *rig) offer(socket string, p *plugin) (remove func()) {
	l, err := r.net.Listen("unix", socket)
	if err != nil {
		r.t.Fatal(err)
	}
	s := grpc.NewServer()
	registration.RegisterRegistrationServer(s, p)
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(l) }()
	var once sync.Once
	remove = func() { once.Do(func() { s.Stop(); <-done }) }
	r.t.Cleanup(remove)
	return remove
}

func (r *rig) csiNode() *storagev1.CSINode {
	return must(store.Get[storagev1.CSINode](r.client, "", nodeName))
}

func info(versions ...string) *registration.PluginInfo {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: driverName, Endpoint: endpoint, SupportedVersions: versions}
}

func TestRegistrationWritesNodeInfo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.up()
		d := r.csiNode().Spec.Drivers
		if len(d) != 1 || d[0].Name != driverName || d[0].NodeID != "id-1" || !slices.Equal(d[0].TopologyKeys, []string{"topology.example.com/zone"}) ||
			d[0].Allocatable == nil || *d[0].Allocatable.Count != 5 {
			t.Errorf("CSINode drivers %+v", d)
		}
		n := must(store.Get[corev1.Node](r.client, "", nodeName))
		if n.Labels["topology.example.com/zone"] != "a" || n.Annotations["csi.volume.kubernetes.io/nodeid"] != `{"csi.example.com":"id-1"}` {
			t.Errorf("labels %v, annotations %v", n.Labels, n.Annotations)
		}
		if o := r.csiNode().OwnerReferences; len(o) != 1 || o[0].UID != n.UID {
			t.Errorf("CSINode is owned by %v", o)
		}
	})
}

// The Lease is renewed every 10 s; the status is written on a change and every five
// minutes. A Lease that was deleted is made anew.
func TestHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.up()
		status := func() (ready corev1.NodeCondition, version string) {
			n := must(store.Get[corev1.Node](r.client, "", nodeName))
			return n.Status.Conditions[0], n.ResourceVersion
		}
		lease := func() *coordinationv1.Lease {
			return must(store.Get[coordinationv1.Lease](r.client, corev1.NamespaceNodeLease, nodeName))
		}
		first, version := status()
		if first.Status != corev1.ConditionTrue {
			t.Errorf("Ready %+v", first)
		}
		time.Sleep(4*time.Minute + 55*time.Second)
		l := lease()
		if o := l.OwnerReferences; len(o) != 1 || o[0].Name != nodeName || *l.Spec.HolderIdentity != nodeName || *l.Spec.LeaseDurationSeconds != 40 {
			t.Errorf("lease %+v", l)
		}
		if age := time.Since(l.Spec.RenewTime.Time); age >= 10*time.Second {
			t.Errorf("renewed %v ago", age)
		}
		if c, v := status(); v != version {
			t.Errorf("the status was written though nothing changed: %+v", c)
		}
		time.Sleep(15 * time.Second)
		if c, v := status(); v == version || !c.LastTransitionTime.Equal(&first.LastTransitionTime) || time.Since(c.LastHeartbeatTime.Time) > 20*time.Second {
			t.Errorf("after five minutes: %+v", c)
		}
		if err := r.client.Delete(r.ctx, l); err != nil {
			t.Fatal(err)
		}
		_, err := store.ModifyStatus(r.ctx, r.client, "", nodeName, func(n *corev1.Node) error {
			n.Status.Conditions[0].Status = corev1.ConditionUnknown
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(11 * time.Second)
		if age := time.Since(lease().Spec.RenewTime.Time); age >= 11*time.Second {
			t.Errorf("renewed %v ago", age)
		}
		if c, _ := status(); c.Status != corev1.ConditionTrue {
			t.Errorf("Ready %+v", c)
		}
	})
}

func TestRegistrationAnswers(t *testing.T) {
	for _, c := range []struct {
		name  string
		info  *registration.PluginInfo
		node  *csi.NodeGetInfoResponse
		heard string // "ok" or a part of the error
	}{
		{"1.0.0", info("1.0.0"), nil, "ok"},
		{"highest 1.x of a mixed list", info("0.3.0", "1.2.0", "2.0.0"), nil, "ok"},
		{"no versions", info(), nil, "Plugin returned an empty list for supported versions"},
		{"only 0.x", info("0.3.0"), nil, "must be v1.x"},
		{"only 2.x", info("2.0.0"), nil, "None of the versions specified"},
		{"garbage", info("one"), nil, "None of the versions specified"},
		{"another type", &registration.PluginInfo{Type: "DevicePlugin", Name: "x"}, nil, "no handler registered for plugin type: DevicePlugin at socket " + regSocket},
		{"empty node id", info("1.0.0"), &csi.NodeGetInfoResponse{}, "driverNodeID must not be empty"},
		{"topology collision", info("1.0.0"), &csi.NodeGetInfoResponse{NodeId: "x", AccessibleTopology: &csi.Topology{Segments: map[string]string{"kubernetes.io/hostname": "other"}}},
			`detected topology value collision: driver reported "kubernetes.io/hostname":"other" but existing label is "kubernetes.io/hostname":"node-1"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				if c.node != nil {
					r.driver.info = c.node
				}
				r.startDriver()
				r.startKubelet()
				p := &plugin{info: c.info}
				r.offer(regSocket, p)
				r.until("answer", func() bool { return len(p.said()) > 0 })
				got := p.said()[0]
				if !strings.Contains(got, c.heard) {
					t.Errorf("heard %q, want %q", got, c.heard)
				}
				synctest.Wait()
				if has := len(r.csiNode().Spec.Drivers) == 1; has != (c.heard == "ok") {
					t.Errorf("CSINode %+v", r.csiNode().Spec)
				}
				if has := len(r.kubelet.RegisteredDrivers()) == 1; has != (c.heard == "ok") {
					t.Errorf("registered %v", r.kubelet.RegisteredDrivers())
				}
			})
		})
	}
}

// Refused or failed, kubelet tries the same socket again, each time later.
func TestRegistrationBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.startDriver()
		for range 3 {
			r.driver.failNext("NodeGetInfo", status.Error(codes.Unavailable, "vCenter away"))
		}
		r.startKubelet()
		p := &plugin{info: info("1.0.0")}
		r.offer(regSocket, p)
		r.until("registered", func() bool { return slices.Contains(p.said(), "ok") })
		var got []time.Duration
		for i := 1; i < len(p.asked); i++ {
			got = append(got, p.asked[i].Sub(p.asked[i-1]))
		}
		if want := []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second}; !slices.Equal(got, want) {
			t.Errorf("asked %v apart, want %v", got, want)
		}
		if got := p.said()[0]; got != "RegisterPlugin error -- plugin registration failed with err: rpc error: code = Unavailable desc = vCenter away" {
			t.Errorf("heard %q", got)
		}
	})
}

// The registrar gives up when refused; its next life registers.
func TestRegistrarIsRefusedAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.startDriver()
		r.driver.failNext("NodeGetInfo", status.Error(codes.Internal, "no zone yet"))
		r.startKubelet()
		err := registrar.Serve(r.ctx, registrar.Config{Endpoint: endpoint, Network: r.net})
		if err == nil || !strings.Contains(err.Error(), "no zone yet") {
			t.Fatalf("Serve: %v", err)
		}
		r.startRegistrar()
		r.until("registered", func() bool { return len(r.csiNode().Spec.Drivers) == 1 })
	})
}

func TestSocketRemovedAndMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.startDriver()
		r.startKubelet()
		remove := r.offer(regSocket, &plugin{info: info("1.0.0")})
		r.until("registered", func() bool { return len(r.kubelet.RegisteredDrivers()) == 1 })
		remove()
		r.until("deregistered", func() bool {
			n := must(store.Get[corev1.Node](r.client, "", nodeName))
			return len(r.kubelet.RegisteredDrivers()) == 0 && len(r.csiNode().Spec.Drivers) == 0 && n.Annotations["csi.volume.kubernetes.io/nodeid"] == ""
		})
		p := &plugin{info: info("1.0.0")}
		r.offer(regSocket, p)
		r.until("registered again", func() bool { return slices.Contains(p.said(), "ok") && len(r.csiNode().Spec.Drivers) == 1 })
	})
}

// A dead socket at boot: dialled for 10 s, then backed off; the back-off is
// the path's, so the new socket waits for it (kubernetes v1.37 as it is).
func TestStaleSocket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.startDriver()
		r.mem.Leave(regSocket)
		r.startKubelet()
		time.Sleep(25 * time.Second) // dials at 0, 10.5, 21.5 s
		p := &plugin{info: info("1.0.0")}
		at := time.Now()
		r.offer(regSocket, p)
		r.until("registered", func() bool { return slices.Contains(p.said(), "ok") })
		if d := time.Since(at); d > 10*time.Second {
			t.Errorf("registered only after %v", d)
		}
	})
}

func TestNameConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.startDriver()
		r.startKubelet()
		r.offer(regSocket, &plugin{info: info("1.0.0")})
		r.until("registered", func() bool { return len(r.kubelet.RegisteredDrivers()) == 1 })
		other := &plugin{info: &registration.PluginInfo{Type: registration.CSIPlugin, Name: driverName, Endpoint: "/elsewhere", SupportedVersions: []string{"1.0.0"}}}
		r.offer(kubeletDir+"/plugins_registry/other-reg.sock", other)
		r.until("refused", func() bool { return len(other.said()) > 0 })
		if !strings.Contains(other.said()[0], `Another driver with the same name is already registered with a higher supported version: "1.0.0"`) {
			t.Errorf("heard %q", other.said()[0])
		}
		if len(r.csiNode().Spec.Drivers) != 1 {
			t.Errorf("CSINode %+v", r.csiNode().Spec)
		}
	})
}

// A CSINode of a former Node of the same name is replaced.
func TestForeignCSINode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		old := &storagev1.CSINode{}
		old.Name = nodeName
		old.Spec.Drivers = []storagev1.CSINodeDriver{{Name: "gone.example.com", NodeID: "x"}}
		r.create(old)
		r.up()
		if d := r.csiNode().Spec.Drivers; len(d) != 1 || d[0].Name != driverName {
			t.Errorf("drivers %+v", d)
		}
	})
}
