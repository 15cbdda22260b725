package san_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/mount-utils"

	"github.com/csilab/csilab/driver/node"
	"github.com/csilab/csilab/driver/node/san"
	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/host/scsi"
	fabric "github.com/csilab/csilab/sim/san"
	"github.com/csilab/csilab/sim/transport"
)

const (
	vol     = "pvc-11111111-1111-1111-1111-111111111111"
	vol2    = "pvc-22222222-2222-2222-2222-222222222222"
	kubelet = "/var/lib/kubelet"
	mib     = int64(1) << 20
)

func stagingOf(volume string) string {
	return kubelet + "/plugins/kubernetes.io/csi/csi.hpe.com/" + volume + "/globalmount"
}

func targetOf(volume, pod string) string {
	return kubelet + "/pods/" + pod + "/volumes/kubernetes.io~csi/" + volume + "/mount"
}

// rig is a SAN and a node of it, with the driver's node service.
type rig struct {
	*node.Service
	t        testing.TB
	close    func() // may be called more than once
	fabric   *fabric.SAN
	protocol string
	host     host.Host
	adapters scsi.Adapters
	client   *http.Client
	// staged are what the calls below carry.
	contexts map[string]map[string]string
	context  map[string]string // volume_context
	secrets  map[string]string
	cfg      san.Config
}

// protocols runs a test over iSCSI and over FC.
func protocols(t *testing.T, f func(t *testing.T, r *rig)) {
	for _, p := range []string{"iscsi", "fc"} {
		t.Run(p, func(t *testing.T) { bubble(t, func(t *testing.T) { f(t, newRig(t, p, 1)) }) })
	}
}

func newRig(t testing.TB, protocol string, arrays int) *rig {
	t.Helper()
	return newRigOn(t, protocol, arrays, disk.NewMemory(), func(s scsi.SAN, a scsi.Adapters) (host.Host, error) {
		return host.NewMemory(host.MemoryConfig{Name: "worker-1", Seed: 7, SAN: s, Adapters: a}), nil
	})
}

// newRigOn makes a rig with a machine.
func newRigOn(t testing.TB, protocol string, arrays int, store disk.Store, machine func(scsi.SAN, scsi.Adapters) (host.Host, error)) *rig {
	t.Helper()
	net := transport.NewMemory()
	cfg := fabric.Config{Seed: 7, Store: store, Arrays: make([]fabric.ArrayConfig, arrays)}
	for i := range cfg.Arrays {
		cfg.Arrays[i].Config.Name = fmt.Sprintf("array%d", i+1)
		l, err := net.Listen("tcp", fmt.Sprintf("array%d:443", i+1))
		if err != nil {
			t.Fatal(err)
		}
		cfg.Arrays[i].Listener = l
	}
	if arrays > 1 {
		cfg.Pairs = []fabric.Pair{{"array1", "array2"}}
	}
	f, err := fabric.New(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, fabric: f, protocol: protocol, contexts: map[string]map[string]string{}, context: map[string]string{}}
	r.adapters = scsi.Adapters{Networks: []string{"10.0.0.11/24"}}
	h := array.HostSpec{Name: "worker-1"}
	if protocol == "fc" {
		r.adapters.WWPNs = []string{"2100000e1e1a2b3c", "2100000e1e1a2b3d"}
		h.FCWWNs = r.adapters.WWPNs
	} else {
		r.adapters.IQN = "iqn.1994-05.com.redhat:worker-1"
		h.ISCSINames = []string{r.adapters.IQN}
	}
	for _, a := range f.Arrays() {
		r.change(a, func(now time.Time) error { _, err := a.Core().CreateHost(now, h); return err })
	}
	if r.host, err = machine(f.For("worker-1", r.adapters), r.adapters); err != nil {
		t.Fatal(err)
	}
	r.client = &http.Client{Transport: &http.Transport{DialContext: net.DialContext, DisableKeepAlives: true}}
	r.close = func() { r.host.Close(); f.Close(); cfg.Store.Close() }
	t.Cleanup(r.close)
	r.Service = r.service(r.host)
	return r
}

// service is a driver that just started, on a host.
func (r *rig) service(h node.Host) *node.Service {
	r.t.Helper()
	cfg := r.config(h)
	b, err := san.New(cfg)
	r.must(err)
	s, err := node.New(node.Config{Host: h, Backend: b, MaxVolumes: 100, Log: cfg.Log})
	r.must(err)
	return s
}

// config is that of a driver on a host.
func (r *rig) config(h node.Host) san.Config {
	cfg := r.cfg
	cfg.Host, cfg.NodeName, cfg.Log = h, "worker-1", slog.New(slog.NewTextHandler(logTo{r.t}, nil))
	return cfg
}

type logTo struct{ t testing.TB }

func (l logTo) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) array(n int) *fabric.Array { return r.fabric.Arrays()[n-1] }

func (r *rig) change(a *fabric.Array, f func(now time.Time) error) {
	r.t.Helper()
	r.must(a.Change(func(now time.Time) ([]array.ContentOp, error) { return nil, f(now) }))
}

// create makes a volume on the first array.
func (r *rig) create(name string, sizeMiB int64) {
	r.t.Helper()
	a := r.array(1)
	s := array.VolumeSpec{Name: vv(name), CPG: fabric.DefaultCPG, SnapCPG: fabric.DefaultCPG, SizeMiB: sizeMiB}
	r.must(a.Change(func(now time.Time) ([]array.ContentOp, error) {
		p, err := a.Core().PlanCreateVolume(s)
		if err != nil {
			return nil, err
		}
		_, err = a.Core().CreateVolume(now, s)
		return p.Ops, err
	}))
}

// vv is the array's name of a volume.
func vv(volume string) string { return volume[:31] }

// export exports a volume at the lowest LUN that is free, and notes the publish
// context.
func (r *rig) export(volume string) (lun int) {
	r.t.Helper()
	a := r.array(1)
	var x array.VLUN
	r.change(a, func(now time.Time) (err error) {
		x, err = a.Core().CreateVLUN(now, array.VLUNSpec{Volume: vv(volume), Host: "worker-1", Auto: true})
		return err
	})
	r.contexts[volume] = r.published(volume)
	return x.LUN
}

// published is the publish context of what is exported now.
func (r *rig) published(volume string) map[string]string {
	r.t.Helper()
	a := r.array(1)
	c := map[string]string{"accessProtocol": r.protocol, "targetScope": "group"}
	for _, v := range a.Volumes() {
		if v.Name == vv(volume) {
			c["serialNumber"] = strings.ToLower(v.WWN)
		}
	}
	for _, x := range a.Exports() {
		if x.Volume == vv(volume) {
			c["lunId"] = strconv.Itoa(x.LUN)
		}
	}
	c["targetNames"], c["discoveryIps"] = r.ports(a)
	return c
}

// ports are the names and addresses of an array's ports for the protocol.
func (r *rig) ports(a *fabric.Array) (names, ips string) {
	var n, i []string
	for _, p := range a.Ports() {
		switch {
		case r.protocol == "iscsi" && p.Protocol == array.ISCSI:
			n, i = append(n, p.ISCSIName), append(i, p.Address)
		case r.protocol == "fc" && p.Protocol == array.FC:
			n = append(n, p.PortWWN)
		}
	}
	return strings.Join(n, ","), strings.Join(i, ",")
}

// positions are those of the ports for the protocol.
func (r *rig) positions(a *fabric.Array) []array.PortPos {
	var out []array.PortPos
	for _, p := range a.Ports() {
		if r.protocol == "iscsi" && p.Protocol == array.ISCSI || r.protocol == "fc" && p.Protocol == array.FC {
			out = append(out, p.PortPos)
		}
	}
	return out
}

// allPorts cuts, or restores, all paths to the first array.
func (r *rig) allPorts(down bool) {
	r.t.Helper()
	for _, pos := range r.positions(r.array(1)) {
		r.must(r.fabric.PortDown("array1", pos, down))
	}
}

func (r *rig) unexport(volume string) {
	r.t.Helper()
	r.must(r.array(1).RemoveVLUN(vv(volume), "worker-1"))
}

func (r *rig) grow(volume string, moreMiB int64) {
	r.t.Helper()
	a := r.array(1)
	r.must(a.Change(func(now time.Time) ([]array.ContentOp, error) {
		p, err := a.Core().PlanGrow(vv(volume), moreMiB)
		if err != nil {
			return nil, err
		}
		_, err = a.Core().Grow(now, vv(volume), moreMiB)
		return p.Ops, err
	}))
}

// begins says what the content of a volume begins with, read beside all nodes.
func (r *rig) begins(volume string, n int) string {
	r.t.Helper()
	for _, v := range r.array(1).Volumes() {
		if v.Name == vv(volume) {
			img, err := r.fabric.For("beside", scsi.Adapters{}).Open(v.Image)
			r.must(err)
			defer img.Close()
			b := make([]byte, n)
			_, err = img.ReadAt(b, 0)
			r.must(err)
			return strings.TrimRight(string(b), "\x00")
		}
	}
	r.t.Fatalf("no volume %s", volume)
	return ""
}

func filesystem(kind string, flags ...string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: kind, MountFlags: flags}},
	}
}

func block(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
	}
}

const writer = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER

func (r *rig) stage(s *node.Service, volume string, c *csi.VolumeCapability) error {
	_, err := s.NodeStageVolume(context.Background(), &csi.NodeStageVolumeRequest{
		VolumeId: volume, StagingTargetPath: stagingOf(volume), VolumeCapability: c,
		PublishContext: r.contexts[volume], VolumeContext: r.context, Secrets: r.secrets,
	})
	return err
}

func (r *rig) publish(s *node.Service, volume, pod string, c *csi.VolumeCapability) error {
	r.t.Helper()
	t := targetOf(volume, pod)
	r.must(r.host.MkdirAll(t[:strings.LastIndexByte(t, '/')], 0o750))
	_, err := s.NodePublishVolume(context.Background(), &csi.NodePublishVolumeRequest{
		VolumeId: volume, StagingTargetPath: stagingOf(volume), TargetPath: t, VolumeCapability: c,
		PublishContext: r.contexts[volume], VolumeContext: r.context, Secrets: r.secrets,
	})
	return err
}

func (r *rig) unpublish(s *node.Service, volume, pod string) error {
	_, err := s.NodeUnpublishVolume(context.Background(), &csi.NodeUnpublishVolumeRequest{VolumeId: volume, TargetPath: targetOf(volume, pod)})
	return err
}

func (r *rig) unstage(s *node.Service, volume string) error {
	_, err := s.NodeUnstageVolume(context.Background(), &csi.NodeUnstageVolumeRequest{VolumeId: volume, StagingTargetPath: stagingOf(volume)})
	return err
}

func (r *rig) code(err error, want codes.Code, words ...string) {
	r.t.Helper()
	if got := status.Code(err); got != want {
		r.t.Fatalf("code %s, want %s: %v", got, want, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			r.t.Errorf("error %q doesn't say %q", err, w)
		}
	}
}

func (r *rig) write(p, data string) {
	r.t.Helper()
	r.must(r.host.WriteAt(p, 0, []byte(data), true))
}

func (r *rig) read(p string, n int) string {
	r.t.Helper()
	b, err := r.host.ReadAt(p, 0, n)
	r.must(err)
	return strings.TrimRight(string(b), "\x00")
}

// entries are the names in a directory with a prefix.
func (r *rig) entries(dir, prefix string) []string {
	r.t.Helper()
	all, err := r.host.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range all {
		if strings.HasPrefix(e.Name(), prefix) {
			out = append(out, e.Name())
		}
	}
	return out
}

// disks are the paths on the node, besides its own disk.
func (r *rig) disks() (out []string) {
	for _, d := range r.entries("/sys/block", "sd") {
		if v, err := r.host.ReadFile("/sys/block/" + d + "/device/vendor"); err == nil && strings.HasPrefix(string(v), "3PARdata") {
			out = append(out, d)
		}
	}
	return out
}

func (r *rig) mounts() []mount.MountPoint {
	r.t.Helper()
	all, err := r.host.Mounter().List()
	r.must(err)
	var out []mount.MountPoint
	for _, m := range all {
		if strings.HasPrefix(m.Path, kubelet+"/") {
			out = append(out, m)
		}
	}
	return out
}

// clean checks that nothing of a volume is left on the node.
func (r *rig) clean() {
	r.t.Helper()
	if m := r.mounts(); len(m) > 0 {
		r.t.Errorf("mounts are left: %v", m)
	}
	if d := r.entries("/sys/block", "dm-"); len(d) > 0 {
		r.t.Errorf("maps are left: %v", d)
	}
	if d := r.disks(); len(d) > 0 {
		r.t.Errorf("paths are left: %v", d)
	}
	if n := r.entries(san.DefaultStateDir+"/volumes", ""); len(n) > 0 {
		r.t.Errorf("notes are left: %v", n)
	}
}

// peer is the publish context's part for a second array.
func (r *rig) peer(lun int) string {
	names, ips := r.ports(r.array(2))
	type details struct {
		LUN     int      `json:"lun_id"`
		Targets []string `json:"target_names"`
		IPs     []string `json:"discovery_ips"`
	}
	b, err := json.Marshal(map[string][]details{"PeerArrayDetails": {{lun, strings.Split(names, ","), strings.Split(ips, ",")}}})
	r.must(err)
	return string(b)
}

// wsapi sends a request to an array as its administrator does.
func (r *rig) wsapi(a *fabric.Array, method, path, body string) {
	r.t.Helper()
	var key struct{ Key string }
	for _, req := range [][3]string{{"POST", "/credentials", `{"user":"3paradm","password":"3pardata"}`}, {method, path, body}} {
		q, err := http.NewRequest(req[0], a.URL()+"/api/v1"+req[1], strings.NewReader(req[2]))
		r.must(err)
		q.Header.Set("X-Hp3Par-Wsapi-Sessionkey", key.Key)
		resp, err := r.client.Do(q)
		r.must(err)
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		r.must(err)
		if resp.StatusCode > 299 {
			r.t.Fatalf("%s %s: %d %s", req[0], req[1], resp.StatusCode, b)
		}
		_ = json.Unmarshal(b, &key)
	}
}
