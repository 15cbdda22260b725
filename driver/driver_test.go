package driver

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/csilab/csilab/driver/vsphere"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/transport"
)

const bios = "420a1f3c-7b6d-4e5f-8a90-1b2c3d4e5f60"

func newHost(t testing.TB) *host.Memory {
	h := host.NewMemory(host.MemoryConfig{Name: "node-1", BIOSUUID: bios})
	t.Cleanup(func() { h.Close() })
	return h
}

// away is a vCenter that nobody answers for.
var away = vsphere.Config{ClusterID: "c", VCenter: vsphere.VCenter{Host: "vc.invalid", User: "a@b", Password: "hunter2", Insecure: true}}

// short makes a directory whose paths fit a unix socket.
func short(t testing.TB) string {
	t.Helper()
	d, err := os.MkdirTemp("", "csi")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(d) })
	return d
}

func connect(t testing.TB, dial func(context.Context, string) (net.Conn, error)) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient("passthrough:///csi", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dial))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

func unixDial(path string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
}

func TestNewSaysWhatIsWrong(t *testing.T) {
	h := newHost(t)
	ok := Config{Mode: Node, Endpoint: "unix:///csi.sock", Host: h}
	for _, c := range []struct {
		change func(*Config)
		words  []string
	}{
		{func(c *Config) { c.Mode = "both" }, []string{"Mode", `"both"`, "controller, node, all"}},
		{func(c *Config) { c.Backend = "nfs" }, []string{"Backend", `"nfs"`, "vsphere", "hpe"}},
		{func(c *Config) { c.Backend = HPE }, []string{"NodeName", "node", "hpe"}},
		{func(c *Config) { c.Endpoint = "" }, []string{"Endpoint", "unix:///path"}},
		{func(c *Config) { c.Endpoint = "unix://csi.sock" }, []string{"Endpoint", `"unix://csi.sock"`, "absolute"}},
		{func(c *Config) { c.Endpoint = "http://x" }, []string{"Endpoint", `"http://x"`}},
		{func(c *Config) { c.Endpoint = "tcp://x" }, []string{"Endpoint", `"tcp://x"`}},
		{func(c *Config) { c.MaxVolumesPerNode = 256 }, []string{"MaxVolumesPerNode", "256", "1 to 255"}},
		{func(c *Config) { c.MaxVolumesPerNode = -1 }, []string{"MaxVolumesPerNode", "-1"}},
		{func(c *Config) { c.MetricsAddress = "9090" }, []string{"MetricsAddress", `"9090"`}},
		{func(c *Config) { c.HealthAddress = "a:b:c" }, []string{"HealthAddress", `"a:b:c"`}},
		{func(c *Config) { c.DeviceWait = -time.Second }, []string{"DeviceWait", "-1s"}},
		{func(c *Config) { c.StopTimeout = -1 }, []string{"StopTimeout"}},
		{func(c *Config) { c.Mode, c.ConfigFile = Controller, "/nowhere/csi-vsphere.conf" }, []string{"/nowhere/csi-vsphere.conf"}},
	} {
		cfg := ok
		c.change(&cfg)
		_, err := New(cfg)
		if err == nil {
			t.Errorf("no error with %q", c.words)
			continue
		}
		for _, w := range c.words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q doesn't say %q", err, w)
			}
		}
	}
	if _, err := New(ok); err != nil {
		t.Error(err)
	}
}

func TestEndpoints(t *testing.T) {
	for in, want := range map[string]string{
		"unix:///run/csi.sock": "unix /run/csi.sock",
		"unix:/run/csi.sock":   "unix /run/csi.sock",
		"/run/csi.sock":        "unix /run/csi.sock",
		"tcp://:10000":         "tcp 127.0.0.1:10000",
		"tcp://[::1]:10000":    "tcp [::1]:10000",
	} {
		n, a, err := ParseEndpoint(in)
		if got := n + " " + a; got != want || err != nil {
			t.Errorf("%s: %s, %v; want %s", in, got, err, want)
		}
	}
}

func FuzzParseEndpoint(f *testing.F) {
	for _, s := range []string{"unix:///a", "tcp://a:1", "", "unix:", "tcp:", "/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, a, err := ParseEndpoint(s)
		if err == nil && (n != "unix" && n != "tcp" || a == "") {
			t.Fatalf("%q: %q %q", s, n, a)
		}
	})
}

// A node's driver on a real socket, in place of one that a killed driver left.
func TestNodeOnASocket(t *testing.T) {
	dir := short(t)
	sock := filepath.Join(dir, "csi.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: sock, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	h := newHost(t)
	if err := h.WriteFile("/etc/topology", []byte("topology.csi.vmware.com/k8s-zone=\"z1\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var web []string // metrics and health share an address
	d, err := New(Config{
		Mode: Node, Endpoint: "unix://" + sock, Host: h, TopologyFile: "/etc/topology", MetricsAddress: ":0", HealthAddress: "127.0.0.1:0",
		Listen: func(network, addr string) (net.Listener, error) {
			l, err := listen(network, addr)
			if err == nil && network == "tcp" {
				web = append(web, "http://"+l.Addr().String())
			}
			return l, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	select {
	case <-d.Ready():
	case err := <-done:
		t.Fatal(err)
	}
	cc := connect(t, unixDial(sock))
	info, err := csi.NewNodeClient(cc).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	if err != nil || info.GetNodeId() != bios || info.GetMaxVolumesPerNode() != 59 || info.GetAccessibleTopology().GetSegments()["topology.csi.vmware.com/k8s-zone"] != "z1" {
		t.Errorf("%v, %v", info, err)
	}
	id := csi.NewIdentityClient(cc)
	if p, err := id.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}); err != nil || p.GetName() != Name(VSphere) || p.GetVendorVersion() == "" {
		t.Errorf("%v, %v", p, err)
	}
	if p, err := id.Probe(ctx, &csi.ProbeRequest{}); err != nil || !p.GetReady().GetValue() {
		t.Errorf("%v, %v", p, err)
	}
	if _, err := csi.NewControllerClient(cc).CreateVolume(ctx, &csi.CreateVolumeRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("controller in node mode: %v", err)
	}
	get := func(url string) string {
		resp, err := http.Get(url)
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return fmt.Sprint(resp.StatusCode, " ", string(b))
	}
	if len(web) != 1 || !strings.HasPrefix(web[0], "http://127.0.0.1:") {
		t.Fatalf("not one address on loopback: %s", web)
	}
	pages := get(web[0]+"/metrics") + get(web[0]+"/healthz")
	for _, want := range []string{`vsphere_csi_info{version="dev"} 1`, "vsphere_csi_operations_seconds_count", "go_goroutines", "200 ok"} {
		if !strings.Contains(pages, want) {
			t.Errorf("pages lack %q", want)
		}
	}
	if err := d.Run(ctx); err == nil {
		t.Error("a second Run passed")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(sock); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

func TestNoTopologyIsNil(t *testing.T) {
	mem := transport.NewMemory()
	stop := runIn(t, mem, Config{Mode: Node, Endpoint: "/csi.sock", Host: newHost(t)})
	info, err := csi.NewNodeClient(memClient(t, mem)).NodeGetInfo(context.Background(), &csi.NodeGetInfoRequest{})
	if err != nil || info.GetAccessibleTopology() != nil {
		t.Errorf("%v, %v", info, err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func memClient(t testing.TB, mem *transport.Memory) *grpc.ClientConn {
	return connect(t, func(ctx context.Context, _ string) (net.Conn, error) {
		return mem.DialContext(ctx, "unix", "/csi.sock")
	})
}

// runIn runs a driver on a network in memory.
func runIn(t testing.TB, mem *transport.Memory, cfg Config) (stop func() error) {
	t.Helper()
	cfg.Listen, cfg.Dial = mem.Listen, mem.DialContext
	cfg.Watch = func(ctx context.Context, _ string) (<-chan struct{}, error) {
		ch := make(chan struct{})
		go func() { <-ctx.Done(); close(ch) }()
		return ch, nil
	}
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	select {
	case <-d.Ready():
	case err := <-done:
		t.Fatal(err)
	}
	return func() error { cancel(); return <-done }
}

// Virtual time, both services, no vCenter: it serves, says that it isn't ready,
// and ends without a goroutine left (or the bubble would not end).
func TestAllInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := transport.NewMemory()
		stop := runIn(t, mem, Config{Endpoint: "/csi.sock", Host: newHost(t), VSphere: &away, HealthAddress: ":8080"})
		cc := memClient(t, mem)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		p, err := csi.NewIdentityClient(cc).Probe(ctx, &csi.ProbeRequest{})
		if err != nil || p.GetReady() == nil || p.GetReady().GetValue() {
			t.Errorf("probe %v, %v; want not ready", p, err)
		}
		_, err = csi.NewControllerClient(cc).ListVolumes(ctx, &csi.ListVolumesRequest{})
		if c := status.Code(err); c != codes.Unavailable {
			t.Errorf("without a vCenter: %v, want Unavailable", err)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("password in %v", err)
		}
		info, err := csi.NewNodeClient(cc).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
		if err != nil || info.GetNodeId() != bios {
			t.Errorf("%v, %v", info, err)
		}
		web := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: mem.DialContext}}
		resp, err := web.Get("http://127.0.0.1:8080/healthz")
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 500 || !strings.Contains(string(b), "not ready") {
			t.Errorf("healthz %d %s", resp.StatusCode, b)
		}
		cc.Close()
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestListenFailureClosesWhatWasOpened(t *testing.T) {
	open := 0
	d, err := New(Config{
		Mode: Node, Endpoint: "/csi.sock", Host: newHost(t), MetricsAddress: ":1", HealthAddress: ":2",
		Listen: func(network, addr string) (net.Listener, error) {
			if network == "unix" {
				return nil, errors.New("no room")
			}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			open++
			return counted{l, &open}, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "no room") {
		t.Errorf("%v", err)
	}
	if open != 0 {
		t.Errorf("%d listeners are open", open)
	}
}

type counted struct {
	net.Listener
	n *int
}

func (c counted) Close() error { *c.n--; return c.Listener.Close() }

func TestSocketPathIsAFile(t *testing.T) {
	p := filepath.Join(short(t), "csi.sock")
	if err := os.WriteFile(p, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listen("unix", p); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("%v", err)
	}
	if b, _ := os.ReadFile(p); string(b) != "precious" {
		t.Error("the file is gone")
	}
}

func TestWatch(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	ch, err := watch(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ch:
	case <-time.After(10 * time.Second):
		t.Fatal("no signal")
	}
	cancel()
	for range ch { // ends
	}
	if _, err := watch(context.Background(), filepath.Join(dir, "none")); err == nil {
		t.Error("a missing directory can be watched")
	}
}

func TestMainSaysWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		args string
		env  map[string]string
		code int
		out  string
		errs []string
	}{
		{args: "--version", code: 0, out: version()},
		{args: "-h", code: 0, errs: []string{"X_CSI_MODE", "CSI_ENDPOINT", "MAX_VOLUMES_PER_NODE"}},
		{args: "", code: 2, errs: []string{"--endpoint", "CSI_ENDPOINT"}},
		{args: "--nonsense", code: 2, errs: []string{"nonsense"}},
		{args: "--endpoint /a extra", code: 2, errs: []string{`"extra"`}},
		{args: "--endpoint /a --backend nfs", code: 2, errs: []string{"nfs", "vsphere", "hpe"}},
		{args: "--endpoint /a --backend hpe --flavor openshift", code: 2, errs: []string{"kubernetes", "vanilla"}},
		{args: "--endpoint /a --backend hpe --flavor kubernetes", code: 2, errs: []string{"KUBERNETES_SERVICE_HOST"}},
		{args: "--endpoint /a --flavor kubernetes", code: 2, errs: []string{"--backend hpe"}},
		{args: "--endpoint /a --mode x", code: 2, errs: []string{`"x"`, "controller, node, all"}},
		{args: "--endpoint /a --backend hpe --node-monitor --node-monitor-interval 0", code: 2, errs: []string{"--node-monitor-interval is 0", "1 to 86400"}},
		{args: "--endpoint /a --log-level loud", code: 2, errs: []string{`"loud"`, "debug"}},
		{args: "--endpoint /a --mode node --max-volumes-per-node 0", code: 2, errs: []string{"1 to 255"}},
		{args: "--endpoint /a", env: map[string]string{"MAX_VOLUMES_PER_NODE": "many"}, code: 2, errs: []string{"MAX_VOLUMES_PER_NODE", `"many"`}},
		{args: "--endpoint /a", env: map[string]string{"X_CSI_MODE": "controller", "VSPHERE_CSI_CONFIG": "/nowhere/x.conf"}, code: 2, errs: []string{"/nowhere/x.conf"}},
		{env: map[string]string{"CSI_ENDPOINT": "csi.sock"}, code: 2, errs: []string{`"csi.sock"`}},
	} {
		var out, errs bytes.Buffer
		code := Main(strings.Fields(c.args), func(k string) string { return c.env[k] }, &out, &errs)
		if code != c.code || !strings.Contains(out.String(), c.out) {
			t.Errorf("%q: %d %q, want %d %q; %s", c.args, code, &out, c.code, c.out, &errs)
		}
		for _, w := range c.errs {
			if !strings.Contains(errs.String(), w) {
				t.Errorf("%q: %q doesn't say %q", c.args, &errs, w)
			}
		}
	}
}

// As upstream's manifest starts it.
func TestUpstreamArguments(t *testing.T) {
	env := map[string]string{
		"CSI_ENDPOINT": "unix:///csi/csi.sock", "X_CSI_MODE": "node", "NODE_NAME": "node-1", "MAX_VOLUMES_PER_NODE": "59",
		"VSPHERE_CSI_CONFIG": "/etc/cloud/csi-vsphere.conf", "LOGGER_LEVEL": "PRODUCTION", "CSI_NAMESPACE": "vmware-system-csi",
	}
	args := []string{"--fss-name=internal-feature-states.csi.vsphere.vmware.com", "--fss-namespace=vmware-system-csi"}
	var errs bytes.Buffer
	cfg, err := parse(args, func(k string) string { return env[k] }, io.Discard, &errs)
	if err != nil || cfg.Mode != Node || cfg.NodeName != "node-1" || cfg.Endpoint != "unix:///csi/csi.sock" || cfg.MaxVolumesPerNode != 59 || cfg.ConfigFile != "/etc/cloud/csi-vsphere.conf" {
		t.Errorf("%+v, %v, %s", cfg, err, &errs)
	}
}

// TestFlavorKubernetes: the binary reads the cluster whose pod it is in.
func TestFlavorKubernetes(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer tok" || r.URL.Path != "/api/v1/namespaces/hpe-storage/secrets/chap" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		fmt.Fprint(w, `{"data":{"chapUser":"dXNlcg=="}}`)
	}))
	defer s.Close()
	dir := t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "ca.crt"), ca, 0o600), os.WriteFile(filepath.Join(dir, "token"), []byte("tok"), 0o600)); err != nil {
		t.Fatal(err)
	}
	defer func(d string) { serviceAccount = d }(serviceAccount)
	serviceAccount = dir
	host, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	env := map[string]string{"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
	var errs bytes.Buffer
	cfg, err := parse(strings.Fields("--endpoint /a --backend hpe --flavor kubernetes"), func(k string) string { return env[k] }, io.Discard, &errs)
	if err != nil || cfg.HPE.Cluster == nil {
		t.Fatalf("%v, %s", err, &errs)
	}
	secret, err := cfg.HPE.Cluster.Secret(t.Context(), "hpe-storage", "chap")
	if err != nil || secret["chapUser"] != "user" {
		t.Errorf("%v, %v", secret, err)
	}
}

func TestMainServesUntilItIsTold(t *testing.T) {
	dir := short(t)
	sock, conf := filepath.Join(dir, "csi.sock"), filepath.Join(dir, "csi-vsphere.conf")
	text := "[Global]\ncluster-id = \"c\"\n[VirtualCenter \"127.0.0.1\"]\nuser = \"a@b\"\npassword = \"hunter2\"\nport = \"1\"\ninsecure-flag = \"true\"\n"
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var errs bytes.Buffer
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"--mode", "controller", "--endpoint", sock, "--vsphere-config", conf, "--state-dir", filepath.Join(dir, "state"), "--log-level", "debug"}, nil, io.Discard, &errs)
	}()
	cc := connect(t, unixDial(sock))
	call, done := context.WithTimeout(ctx, 10*time.Second)
	defer done()
	if _, err := csi.NewIdentityClient(cc).GetPluginInfo(call, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Error(err)
	}
	cc.Close()
	cancel()
	if c := <-code; c != 0 {
		t.Errorf("exit code %d: %s", c, &errs)
	}
	if strings.Contains(errs.String(), "hunter2") {
		t.Error("password in the log")
	}
}

// The controller for HPE storage needs no configuration: its calls bring it.
func TestHPEController(t *testing.T) {
	mem := transport.NewMemory()
	d, err := New(Config{Mode: Controller, Backend: HPE, Endpoint: "unix:///csi.sock", Dial: mem.DialContext, Listen: mem.Listen})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	<-d.Ready()
	cc := connect(t, func(ctx context.Context, _ string) (net.Conn, error) {
		return mem.DialContext(ctx, "unix", "/csi.sock")
	})
	if p, err := csi.NewIdentityClient(cc).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}); err != nil || p.GetName() != "csi.hpe.com" {
		t.Errorf("%v, %v", p, err)
	}
	if _, err := csi.NewControllerClient(cc).DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: "v"}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without secrets: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A mounted Secret is read for each use.
func TestSecretFiles(t *testing.T) {
	dir := t.TempDir()
	for name, data := range map[string]string{"username": "a\n", "..data": "no"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := secretFiles(dir)
	if s, err := read(t.Context()); err != nil || len(s) != 1 || s["username"] != "a" {
		t.Errorf("%v, %v", s, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "password"), []byte("b"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := read(t.Context()); err != nil || s["password"] != "b" {
		t.Errorf("%v, %v", s, err)
	}
}
