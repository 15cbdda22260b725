package vsphere_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/csilab/csilab/driver/vsphere"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/vcenter"
)

type buffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

// A changed password: no hammering that locks the account, and the new Secret
// is taken without a restart. No secret in logs, errors and ledger.
func TestPasswordRotation(t *testing.T) {
	const first, second = "first-s3cret", `second "s3cret" \ #;`
	dir := t.TempDir()
	path := filepath.Join(dir, "csi-vsphere.conf")
	changed := make(chan struct{})
	var log buffer
	r := newRig(t, vcenter.Config{Seed: 30, TLS: true, Password: first}, func(o *options) {
		o.ConfigFile = path
		o.Watch = func(_ context.Context, d string) (<-chan struct{}, error) {
			if d != dir {
				t.Errorf("watches %s", d)
			}
			return changed, nil
		}
		o.LoginBackoff = time.Hour
		o.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	r.create("pvc-1")
	r.vc.SetPassword(second)
	r.vc.KillSessions()
	logins := r.calls("Login")
	for range 5 {
		_, err := r.CreateVolume(r.ctx, createRequest("pvc-2", 1<<30))
		want(t, err, codes.Unavailable, "login", "Cannot complete login")
		if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("a password in %v", err)
		}
	}
	if n := r.calls("Login") - logins; n != 1 {
		t.Errorf("%d logins with the old password, want 1", n)
	}
	if err := r.backend.Probe(r.ctx); err != nil {
		t.Errorf("probe after a good login: %v", err)
	}
	// Half a file is no configuration; the old one stays.
	if err := os.WriteFile(path, []byte("[Global]\ncluster-id"), 0o600); err != nil {
		t.Fatal(err)
	}
	changed <- struct{}{}
	if err := os.WriteFile(path, []byte(r.vc.Conf("cluster-1")), 0o600); err != nil {
		t.Fatal(err)
	}
	changed <- struct{}{}
	changed <- struct{}{} // the one before has been dealt with
	r.create("pvc-2")
	log.mu.Lock()
	defer log.mu.Unlock()
	if strings.Contains(log.String(), "s3cret") {
		t.Error("a password in the log")
	}
	if strings.Contains(ledger.Text(r.led.Entries()), "s3cret") {
		t.Error("a password in the ledger")
	}
}

func TestWrongPasswordAtStart(t *testing.T) {
	r := newRig(t, vcenter.Config{Seed: 31}, func(o *options) { o.Config.VCenter.Password = "wrong"; o.LoginBackoff = 50 * time.Millisecond })
	if err := r.backend.Probe(r.ctx); err == nil {
		t.Fatal("ready without a login")
	}
	began := time.Now()
	for time.Since(began) < 300*time.Millisecond {
		r.backend.Probe(r.ctx)
		time.Sleep(time.Millisecond)
	}
	// 50, 100, 200 ms
	if n := r.calls("Login"); n < 2 || n > 4 {
		t.Errorf("%d logins in 300 ms", n)
	}
}

func TestTrust(t *testing.T) {
	r := newRig(t, vcenter.Config{Seed: 32, TLS: true}, nil)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, r.vc.CA(), 0o600); err != nil {
		t.Fatal(err)
	}
	other := strings.Repeat("AB:", 31) + "AB"
	for _, x := range []struct {
		name string
		set  func(*vsphere.VCenter)
		ok   bool
	}{
		{"unknown authority", func(*vsphere.VCenter) {}, false},
		{"ca-file", func(v *vsphere.VCenter) { v.CAFile = ca }, true},
		{"thumbprint", func(v *vsphere.VCenter) { v.Thumbprint = r.vc.Thumbprint() }, true},
		{"another thumbprint", func(v *vsphere.VCenter) { v.Thumbprint = other }, false},
		{"no ca-file", func(v *vsphere.VCenter) { v.CAFile = ca + "x" }, false},
		{"insecure", func(v *vsphere.VCenter) { v.Insecure = true }, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			logins := r.calls("Login")
			c := r.conf
			c.VCenter.Insecure = false
			x.set(&c.VCenter)
			b, err := vsphere.New(r.ctx, vsphere.Options{Config: c, Records: r.records})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close(r.ctx)
			if err := b.Probe(r.ctx); (err == nil) != x.ok {
				t.Errorf("probe: %v", err)
			}
			if n := r.calls("Login") - logins; !x.ok && n != 0 {
				t.Errorf("%d logins to a server that isn't trusted", n)
			}
		})
	}
}

// A vCenter that is away is Unavailable, and is used again when it is back.
func TestVCenterAway(t *testing.T) {
	var down sync.Map
	r := newRig(t, vcenter.Config{Seed: 33}, func(o *options) {
		o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if _, ok := down.Load("down"); ok {
				return nil, &net.OpError{Op: "dial", Net: network, Err: os.ErrDeadlineExceeded}
			}
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		}
	})
	down.Store("down", true)
	_, err := r.CreateVolume(r.ctx, createRequest("pvc-1", 1<<30))
	want(t, err, codes.Unavailable)
	down.Delete("down")
	r.create("pvc-1")
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	r := newRig(t, vcenter.Config{Seed: 34}, func(o *options) { o.Registerer = reg })
	vol := r.create("pvc-1")
	if _, err := r.CreateVolume(r.ctx, createRequest("pvc-1", 9<<30)); err == nil {
		t.Fatal("no error")
	}
	if _, err := r.ControllerExpandVolume(r.ctx, &csi.ControllerExpandVolumeRequest{VolumeId: vol, CapacityRange: &csi.CapacityRange{RequiredBytes: 2 << 30}}); err != nil {
		t.Fatal(err)
	}
	mfs, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	series := map[string]int{"vsphere_csi_volume_ops_histogram": 3, "vsphere_cns_volume_ops_histogram": 4}
	for _, mf := range mfs {
		if n := len(mf.GetMetric()); n != series[mf.GetName()] {
			t.Errorf("%s has %d series, want %d", mf.GetName(), n, series[mf.GetName()])
		}
		delete(series, mf.GetName())
		text.WriteString(mf.String())
	}
	if len(series) > 0 {
		t.Errorf("missing %v", series)
	}
	for _, label := range []string{"create-volume", "expand-volume", "query-volume", "query-snapshots", "csi.fault.AlreadyExists", "pass", "fail", "block"} {
		if !strings.Contains(text.String(), `"`+label+`"`) {
			t.Errorf("no label %s", label)
		}
	}
}
