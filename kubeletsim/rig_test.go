package kubeletsim_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/mount-utils"

	"github.com/csilab/csilab/kubeletsim"
	"github.com/csilab/csilab/kubeletsim/registrar"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/transport"
)

const (
	driverName = "csi.example.com"
	endpoint   = "/var/lib/kubelet/plugins/csi.example.com/csi.sock"
	nodeName   = "node-1"
	kubeletDir = "/var/lib/kubelet"
	mib        = 1 << 20
)

// rig is a node with a kubelet, a driver, and someone who attaches.
type rig struct {
	t         *testing.T
	ctx       context.Context
	cancel    context.CancelFunc
	start     time.Time
	led       *ledger.Ledger
	plan      *fault.Plan
	in        *fault.Interceptor
	store     *store.Store
	client    *store.Client
	net       transport.Network
	watch     transport.Watcher
	mem       *transport.Memory // net and watch, unless on the wall
	host      host.Host
	disks     disk.Store
	driver    *fakeDriver
	timers    kubeletsim.Timers
	forgetful bool
	// leftovers are files that kubelet is known to leave.
	leftovers []string

	mu       sync.Mutex
	kubelet  *kubeletsim.Kubelet
	cut      func() // fences the running incarnation, as a crash does
	fence    func() // and waits for its end
	wg       sync.WaitGroup
	attached map[string]bool // handle
	detachOf []string        // handles that were detached while still mounted
}

// newRig is for a bubble.
func newRig(t *testing.T) *rig {
	m := transport.NewMemory()
	r := makeRig(t, m, m, host.NewMemory(host.MemoryConfig{Name: nodeName}), disk.NewMemory())
	r.mem = m
	return r
}

func makeRig(t *testing.T, net transport.Network, watch transport.Watcher, h host.Host, disks disk.Store) *rig {
	ctx, cancel := context.WithCancel(context.Background())
	r := &rig{t: t, ctx: ctx, cancel: cancel, start: time.Now(), led: &ledger.Ledger{}, plan: &fault.Plan{Seed: 1}, net: net, watch: watch,
		disks: disks, host: h, attached: map[string]bool{}, timers: kubeletsim.RealTimers()}
	r.in = &fault.Interceptor{Ledger: r.led, Plan: r.plan}
	r.store = store.New(1, r.in)
	r.client = r.store.Client("test")
	r.driver = newFakeDriver(r.host)
	t.Cleanup(r.close)
	r.spawn(func() { r.attacher() })
	return r
}

func (r *rig) spawn(f func()) {
	r.wg.Add(1)
	go func() { defer r.wg.Done(); f() }()
}

func (r *rig) close() {
	r.cancel()
	r.driver.stop()
	r.wg.Wait()
	if err := r.host.Close(); err != nil {
		r.t.Error(err)
	}
	if err := r.disks.Close(); err != nil {
		r.t.Error(err)
	}
}

func (r *rig) startDriver() {
	r.t.Helper()
	l, err := r.net.Listen("unix", endpoint)
	if err != nil {
		r.t.Fatal(err)
	}
	r.driver.serve(l)
}

// startRegistrar runs a registrar and starts it anew when kubelet refuses.
func (r *rig) startRegistrar() {
	r.spawn(func() {
		for r.ctx.Err() == nil {
			err := registrar.Serve(r.ctx, registrar.Config{Driver: driverName, Endpoint: endpoint, Network: r.net, In: r.in, Node: nodeName})
			if err == nil {
				return
			}
			select {
			case <-time.After(time.Second):
			case <-r.ctx.Done():
			}
		}
	})
}

// startKubelet runs one incarnation; crash and stop end it.
func (r *rig) startKubelet() {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.ctx)
	client := r.store.Client("kubelet@" + nodeName)
	fenced := host.Fence(r.host)
	h := host.Intercept(fenced, r.in, "kubelet@"+nodeName)
	net := transport.NewFenced(r.net)
	k, err := kubeletsim.New(kubeletsim.Config{NodeName: nodeName, Client: client, Host: h, Network: net, Watcher: r.watch,
		In: r.in, Timers: r.timers, Forgetful: r.forgetful})
	if err != nil {
		r.t.Fatal(err)
	}
	done := make(chan struct{})
	r.mu.Lock()
	cut := func() {
		client.Fence()
		net.Fence()
		fenced.Fence()
		cancel()
	}
	r.kubelet, r.cut, r.fence = k, cut, func() { cut(); <-done }
	r.mu.Unlock()
	r.spawn(func() {
		defer close(done)
		defer cancel()
		if err := k.Run(ctx); err != nil {
			r.t.Errorf("Run: %v", err)
		}
	})
}

// stopKubelet crashes the running incarnation and waits for its end.
func (r *rig) stopKubelet() {
	r.mu.Lock()
	f := r.fence
	r.mu.Unlock()
	f()
}

func (r *rig) up() {
	r.t.Helper()
	r.startDriver()
	r.startKubelet()
	r.startRegistrar()
	r.until("driver registered", func() bool { return len(r.kubelet.RegisteredDrivers()) == 1 })
}

// until waits for a state, at most five virtual minutes.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	r.within(5*time.Minute, what, ok)
}

func (r *rig) within(d time.Duration, what string, ok func() bool) {
	r.t.Helper()
	r.poll(20*time.Millisecond, d, what, ok)
}

func (r *rig) poll(step, d time.Duration, what string, ok func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(d)
	for !ok() {
		if time.Now().After(deadline) {
			r.t.Fatalf("%s: not within %v\n%s", what, d, r.dump())
		}
		time.Sleep(step)
	}
}

func (r *rig) dump() string {
	var b strings.Builder
	for _, e := range r.led.Entries() {
		if e.Hop == ledger.Kube || e.Hop == ledger.Host {
			continue
		}
		fmt.Fprintf(&b, "%8v %v %s\n", e.Start.Sub(r.start).Round(time.Millisecond), e, e.Error)
	}
	for _, e := range store.List[corev1.Event](r.client, "") {
		fmt.Fprintf(&b, "event %s %s %dx: %s\n", e.InvolvedObject.Name, e.Reason, e.Count, e.Message)
	}
	if n, err := store.Get[corev1.Node](r.client, "", nodeName); err == nil {
		fmt.Fprintf(&b, "inUse %v attached %v\n", n.Status.VolumesInUse, n.Status.VolumesAttached)
	}
	for _, p := range store.List[corev1.Pod](r.client, "") {
		fmt.Fprintf(&b, "pod %s %s deletion %v\n", p.Name, p.Status.Phase, p.DeletionTimestamp)
	}
	fmt.Fprintf(&b, "files %q\n", r.files())
	return b.String()
}

func (r *rig) create(os ...store.Object) {
	r.t.Helper()
	for _, o := range os {
		if err := r.client.Create(r.ctx, o); err != nil {
			r.t.Fatal(err)
		}
	}
}

type volOption func(*corev1.PersistentVolume, *corev1.PersistentVolumeClaim)

func asBlock(pv *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) {
	m := corev1.PersistentVolumeBlock
	pv.Spec.VolumeMode, c.Spec.VolumeMode = &m, &m
}

func withMode(m corev1.PersistentVolumeAccessMode) volOption {
	return func(pv *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) {
		pv.Spec.AccessModes, c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{m}, []corev1.PersistentVolumeAccessMode{m}
	}
}

// volume makes a disk, a PV named pv-<name> and a claim <name> bound to each other.
func (r *rig) volume(name string, opts ...volOption) {
	r.t.Helper()
	if err := r.disks.Create(name, 8*mib); err != nil {
		r.t.Fatal(err)
	}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("8Mi")}
	pvc := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeName: "pv-" + name,
			Resources: corev1.VolumeResourceRequirements{Requests: size}}}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}, Spec: corev1.PersistentVolumeSpec{Capacity: size,
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: name, FSType: "ext4",
			VolumeAttributes: map[string]string{"type": "test"}}}}}
	for _, o := range opts {
		o(pv, pvc)
	}
	r.create(pvc)
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: name, UID: pvc.UID}
	r.create(pv)
	if _, err := store.ModifyStatus(r.ctx, r.client, "default", name, func(c *corev1.PersistentVolumeClaim) error {
		c.Status.Phase, c.Status.Capacity = corev1.ClaimBound, size.DeepCopy()
		return nil
	}); err != nil {
		r.t.Fatal(err)
	}
}

// pod is a pod on the node with one claim: mounted at /data, or as device /dev/xvda.
func pod(name, claim string, block bool) *corev1.Pod {
	c := corev1.Container{Name: "main", Image: "none"}
	if block {
		c.VolumeDevices = []corev1.VolumeDevice{{Name: "vol", DevicePath: "/dev/xvda"}}
	} else {
		c.VolumeMounts = []corev1.VolumeMount{{Name: "vol", MountPath: "/data"}}
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{c},
		Volumes: []corev1.Volume{{Name: "vol", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}}}
}

func (r *rig) phase(name string) corev1.PodPhase {
	p, err := store.Get[corev1.Pod](r.client, "default", name)
	if err != nil {
		return ""
	}
	return p.Status.Phase
}

func (r *rig) running(name string) {
	r.t.Helper()
	r.until("pod "+name+" running", func() bool { return r.phase(name) == corev1.PodRunning })
}

func (r *rig) deletePod(name string) {
	r.t.Helper()
	p, err := store.Get[corev1.Pod](r.client, "default", name)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := r.client.Delete(r.ctx, p); err != nil {
		r.t.Fatal(err)
	}
}

// clean waits until nothing of any volume is left on the node, and says so of
// the Node object too.
func (r *rig) clean() {
	r.t.Helper()
	r.poll(500*time.Millisecond, 5*time.Minute, "node clean", func() bool {
		n, err := store.Get[corev1.Node](r.client, "", nodeName)
		if err != nil || len(n.Status.VolumesInUse)+len(n.Status.VolumesAttached) > 0 {
			return false
		}
		return !slices.ContainsFunc(r.files(), func(f string) bool { return !slices.Contains(r.leftovers, f) })
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.detachOf) > 0 {
		r.t.Fatalf("detached while mounted: %v\n%s", r.detachOf, r.dump())
	}
}

// files lists what kubelet and driver have left below the root directory.
func (r *rig) files() []string {
	var out, ms []string
	all, _ := r.host.Mounter().List()
	for _, m := range all {
		if strings.HasPrefix(m.Path, kubeletDir+"/") {
			ms = append(ms, m.Path)
			out = append(out, "mount "+m.Path)
		}
	}
	var walk func(p string)
	walk = func(p string) {
		es, _ := r.host.ReadDir(p)
		for _, e := range es {
			q := path.Join(p, e.Name())
			switch {
			case strings.HasPrefix(q, kubeletDir+"/plugins_registry"), strings.HasPrefix(q, path.Dir(endpoint)):
				// sockets
			case q == kubeletDir+"/pods", q == kubeletDir+"/plugins", q == kubeletDir+"/plugins/kubernetes.io",
				q == kubeletDir+"/plugins/kubernetes.io/csi", q == kubeletDir+"/plugins/kubernetes.io/csi/"+driverName,
				strings.HasPrefix(q, kubeletDir+"/plugins/kubernetes.io/csi/volumeDevices") && strings.Count(q, "/") <= 8 &&
					slices.Contains([]string{"volumeDevices", "staging", "publish"}, e.Name()):
				// kubelet keeps these
			default:
				out = append(out, q)
			}
			if e.IsDir() && !slices.Contains(ms, q) {
				walk(q)
			}
		}
	}
	walk(kubeletDir)
	return out
}

func attachmentName(handle string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driverName+nodeName)))
}

func wwn(handle string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(handle)))[:32] }

// attacher attaches what the node reports in use and detaches what it no
// longer does, as attach/detach controller and external-attacher would.
func (r *rig) attacher() {
	prefix := "kubernetes.io/csi/" + driverName + "^"
	for e := range r.client.Watch(r.ctx, "Node") {
		n, ok := e.Object.(*corev1.Node)
		if !ok || e.Type == store.Deleted {
			continue
		}
		n, err := store.Get[corev1.Node](r.client, "", n.Name)
		if err != nil {
			continue
		}
		want := map[string]bool{}
		for _, v := range n.Status.VolumesInUse {
			want[strings.TrimPrefix(string(v), prefix)] = true
		}
		changed := false
		for h := range want {
			if r.attached[h] {
				continue
			}
			img, err := r.disks.Open(h)
			if err != nil || r.host.AttachDisk(r.ctx, wwn(h), img) != nil {
				continue
			}
			pv := "pv-" + h
			va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: attachmentName(h)}, Spec: storagev1.VolumeAttachmentSpec{Attacher: driverName,
				NodeName: nodeName, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}}}
			if r.client.Create(r.ctx, va) != nil {
				continue
			}
			va.Status = storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"wwn": wwn(h)}}
			if r.client.UpdateStatus(r.ctx, va) != nil {
				continue
			}
			r.attached[h], changed = true, true
		}
		for h := range r.attached {
			if want[h] {
				continue
			}
			ms, _ := r.host.Mounter().List()
			for _, m := range ms {
				if strings.HasPrefix(m.Path, kubeletDir) && r.driver.deviceOf(m.Path) == h {
					r.mu.Lock()
					r.detachOf = append(r.detachOf, h+" at "+m.Path)
					r.mu.Unlock()
				}
			}
			r.host.DetachDisk(r.ctx, wwn(h))
			va, err := store.Get[storagev1.VolumeAttachment](r.client, "", attachmentName(h))
			if err == nil {
				r.client.Delete(r.ctx, va)
			}
			delete(r.attached, h)
			changed = true
		}
		if changed {
			store.ModifyStatus(r.ctx, r.client, "", nodeName, func(n *corev1.Node) error {
				n.Status.VolumesAttached = nil
				for _, h := range slices.Sorted(mapKeys(r.attached)) {
					n.Status.VolumesAttached = append(n.Status.VolumesAttached, corev1.AttachedVolume{Name: corev1.UniqueVolumeName(prefix + h)})
				}
				return nil
			})
		}
	}
}

func mapKeys[K comparable, V any](m map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// fakeDriver is a node service on a memory host, as small as can be.
type fakeDriver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	host host.Host

	mu      sync.Mutex
	name    string
	server  *grpc.Server
	done    chan struct{}
	noStage bool
	group   bool // VOLUME_MOUNT_GROUP
	noGrow  bool // no EXPAND_VOLUME
	info    *csi.NodeGetInfoResponse
	fail    map[string][]error // method -> errors of the next calls; nil error: succeed
	after   map[string][]error // the same, after the work was done
	calls   []call
	paths   map[string]string // path -> handle
}

type call struct {
	at     time.Time
	method string
	req    any
}

func newFakeDriver(h host.Host) *fakeDriver {
	return &fakeDriver{host: h, name: driverName, fail: map[string][]error{}, after: map[string][]error{}, paths: map[string]string{},
		info: &csi.NodeGetInfoResponse{NodeId: "id-1", MaxVolumesPerNode: 5, AccessibleTopology: &csi.Topology{Segments: map[string]string{"topology.example.com/zone": "a"}}}}
}

func (d *fakeDriver) serve(l interface{ Close() error }) {
	s := grpc.NewServer(grpc.UnaryInterceptor(d.intercept))
	csi.RegisterIdentityServer(s, d)
	csi.RegisterNodeServer(s, d)
	done := make(chan struct{})
	d.mu.Lock()
	d.server, d.done = s, done
	d.mu.Unlock()
	go func() { defer close(done); serveOn(s, l) }()
}

func (d *fakeDriver) stop() {
	d.mu.Lock()
	s, done := d.server, d.done
	d.server = nil
	d.mu.Unlock()
	if s != nil {
		s.Stop()
		<-done
	}
}

func (d *fakeDriver) intercept(ctx context.Context, req any, i *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
	m := i.FullMethod[strings.LastIndex(i.FullMethod, "/")+1:]
	next := func(q map[string][]error) (error, bool) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if len(q[m]) == 0 {
			return nil, false
		}
		e := q[m][0]
		q[m] = q[m][1:]
		return e, e != nil
	}
	d.mu.Lock()
	d.calls = append(d.calls, call{time.Now(), m, req})
	d.mu.Unlock()
	if e, ok := next(d.fail); ok {
		if e == errHang {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return nil, e
	}
	out, err := h(ctx, req)
	if err == nil {
		if e, ok := next(d.after); ok {
			return nil, e
		}
	}
	return out, err
}

var errHang = fmt.Errorf("hang")

// made lists the calls of a method.
func (d *fakeDriver) made(method string) []call {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []call
	for _, c := range d.calls {
		if c.method == method {
			out = append(out, c)
		}
	}
	return out
}

// order lists all calls but those for capabilities and registration.
func (d *fakeDriver) order() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []string
	for _, c := range d.calls {
		if c.method != "NodeGetCapabilities" && c.method != "NodeGetInfo" && c.method != "GetPluginInfo" {
			out = append(out, c.method)
		}
	}
	return out
}

func (d *fakeDriver) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = nil
}

func (d *fakeDriver) failNext(method string, errs ...error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail[method] = append(d.fail[method], errs...)
}

func (d *fakeDriver) deviceOf(p string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.paths[p]
}

func (d *fakeDriver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: "1"}, nil
}

func (d *fakeDriver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.info, nil
}

func (d *fakeDriver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	out := &csi.NodeGetCapabilitiesResponse{}
	add := func(t csi.NodeServiceCapability_RPC_Type, not bool) {
		if !not {
			out.Capabilities = append(out.Capabilities, &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}}})
		}
	}
	add(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, d.noStage)
	add(csi.NodeServiceCapability_RPC_EXPAND_VOLUME, d.noGrow)
	add(csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP, !d.group)
	add(csi.NodeServiceCapability_RPC_GET_VOLUME_STATS, false)
	return out, nil
}

func (d *fakeDriver) device(c map[string]string) string {
	return "/dev/disk/by-id/wwn-0x" + c["wwn"]
}

func (d *fakeDriver) mounted(p string) bool {
	ms, _ := d.host.Mounter().List()
	return slices.ContainsFunc(ms, func(m mount.MountPoint) bool { return m.Path == p })
}

func (d *fakeDriver) mount(src, target, fsType, handle string, opts []string) error {
	if d.mounted(target) {
		return nil
	}
	if err := d.host.Mounter().Mount(src, target, fsType, opts); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	d.mu.Lock()
	d.paths[target] = handle
	d.mu.Unlock()
	return nil
}

func (d *fakeDriver) unmount(target string) error {
	if d.mounted(target) {
		if err := d.host.Mounter().Unmount(target); err != nil {
			return status.Error(codes.Internal, err.Error())
		}
	}
	return nil
}

func (d *fakeDriver) NodeStageVolume(_ context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if r.VolumeCapability.GetBlock() != nil {
		return &csi.NodeStageVolumeResponse{}, nil
	}
	if d.mounted(r.StagingTargetPath) {
		return &csi.NodeStageVolumeResponse{}, nil
	}
	m := mount.NewSafeFormatAndMount(d.host.Mounter(), d.host.Exec())
	if err := m.FormatAndMount(d.device(r.PublishContext), r.StagingTargetPath, "ext4", nil); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	d.mu.Lock()
	d.paths[r.StagingTargetPath] = r.VolumeId
	d.mu.Unlock()
	return &csi.NodeStageVolumeResponse{}, nil
}

func (d *fakeDriver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	opts := []string{"bind"}
	if r.Readonly {
		opts = append(opts, "ro")
	}
	if r.VolumeCapability.GetBlock() != nil {
		if _, err := d.host.Stat(r.TargetPath); err != nil {
			if err := d.host.WriteFile(r.TargetPath, nil, 0o600); err != nil {
				return nil, status.Error(codes.Internal, err.Error())
			}
		}
		return &csi.NodePublishVolumeResponse{}, d.mount(d.device(r.PublishContext), r.TargetPath, "", r.VolumeId, opts)
	}
	if err := d.host.MkdirAll(r.TargetPath, 0o750); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	src := r.StagingTargetPath
	if src == "" {
		src = d.device(map[string]string{"wwn": wwn(r.VolumeId)})
		m := mount.NewSafeFormatAndMount(d.host.Mounter(), d.host.Exec())
		if err := m.FormatAndMount(src, r.TargetPath, "ext4", nil); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		return &csi.NodePublishVolumeResponse{}, nil
	}
	if !d.mounted(src) {
		return nil, status.Errorf(codes.FailedPrecondition, "%s is not staged", r.VolumeId)
	}
	return &csi.NodePublishVolumeResponse{}, d.mount(src, r.TargetPath, "", r.VolumeId, opts)
}

func (d *fakeDriver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := d.unmount(r.TargetPath); err != nil {
		return nil, err
	}
	if err := d.host.Remove(r.TargetPath); err != nil && !isNotExist(err) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (d *fakeDriver) NodeUnstageVolume(_ context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, d.unmount(r.StagingTargetPath)
}

func (d *fakeDriver) NodeExpandVolume(_ context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	return &csi.NodeExpandVolumeResponse{CapacityBytes: r.CapacityRange.GetRequiredBytes()}, nil
}

func (d *fakeDriver) NodeGetVolumeStats(_ context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: 100, Used: 40, Available: 60}}}, nil
}

func isNotExist(err error) bool {
	return strings.Contains(err.Error(), fs.ErrNotExist.Error()) || strings.Contains(err.Error(), "no such file")
}
