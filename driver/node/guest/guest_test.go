package guest

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csilab/csilab/driver/node"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host"
)

const (
	bios = "420a1f3c-7b6d-4e5f-8a90-1b2c3d4e5f60"
	one  = "6000c29f1b2c3d4e5f60718293a4b5c6"
	two  = "6000c29f1b2c3d4e5f60718293a4b5c7"
)

func newNode(t testing.TB) (*host.Memory, disk.Store) {
	h, s := host.NewMemory(host.MemoryConfig{Name: "n", BIOSUUID: bios}), disk.NewMemory()
	t.Cleanup(func() { h.Close(); s.Close() })
	return h, s
}

func plug(t testing.TB, h *host.Memory, s disk.Store, wwn string) {
	t.Helper()
	if _, err := s.Stat(wwn); err != nil {
		if err := s.Create(wwn, 1<<20); err != nil {
			t.Fatal(err)
		}
	}
	img, err := s.Open(wwn)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.AttachDisk(context.Background(), wwn, img); err != nil {
		t.Fatal(err)
	}
}

func ctxOf(wwn string) node.Volume {
	return node.Volume{PublishContext: map[string]string{"diskUUID": wwn}}
}

func newGuest(t testing.TB, cfg Config) *Guest {
	t.Helper()
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// override is a host with some files of its own.
type override struct {
	*host.Memory
	files map[string]string // "" removes
}

func (o override) ReadFile(p string) ([]byte, error) {
	if c, ok := o.files[p]; ok {
		if c == "" {
			return nil, &fs.PathError{Op: "open", Path: p, Err: fs.ErrNotExist}
		}
		return []byte(c), nil
	}
	return o.Memory.ReadFile(p)
}

func TestNodeID(t *testing.T) {
	const serial, uuid = dmi + "/product_serial", dmi + "/product_uuid"
	h, _ := newNode(t)
	for _, c := range []struct {
		name, serial, uuid, want, err string
	}{
		{name: "as the VM has it", serial: "as is", want: bios},
		{name: "upper case", serial: "VMware-42 0A 1F 3C 7B 6D 4E 5F-8A 90 1B 2C 3D 4E 5F 60\n", want: bios},
		{name: "no serial", uuid: "420A1F3C-7B6D-4E5F-8A90-1B2C3D4E5F60\n", want: bios},
		{name: "other vendor", serial: "PF2ABCDE", uuid: bios, want: bios},
		{name: "short", serial: "VMware-42 0a", uuid: bios, want: bios},
		{name: "neither", err: "product_uuid"},
		{name: "both wrong", serial: "VMware-zz", uuid: "x", err: `"VMware-zz"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := override{h, map[string]string{serial: c.serial, uuid: c.uuid}}
			if c.serial == "as is" {
				o.files = nil
			}
			id, err := newGuest(t, Config{Host: o}).NodeID(context.Background())
			if id != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Fatalf("%q, %v; want %q, %q", id, err, c.want, c.err)
			}
		})
	}
}

func FuzzParseSerial(f *testing.F) {
	for _, s := range []string{"VMware-42 0a 1f 3c 7b 6d 4e 5f-8a 90 1b 2c 3d 4e 5f 60", "VMware-", "", "VMware-42 0a", "None"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := parseSerial(s)
		if err != nil {
			return
		}
		if len(id) != 36 || strings.ToLower(id) != id || strings.Count(id, "-") != 4 {
			t.Fatalf("id %q of %q", id, s)
		}
	})
}

func TestDevice(t *testing.T) {
	ctx := context.Background()
	h, s := newNode(t)
	plug(t, h, s, one)
	g := newGuest(t, Config{Host: h, Wait: time.Millisecond})
	dev, err := g.Device(ctx, ctxOf(one), true)
	if err != nil || dev != "/dev/sdb" {
		t.Fatalf("%q, %v", dev, err)
	}
	dashed := one[:8] + "-" + one[8:12] + "-" + one[12:16] + "-" + one[16:20] + "-" + strings.ToUpper(one[20:])
	if dev, err := g.Device(ctx, ctxOf(dashed), false); err != nil || dev != "/dev/sdb" {
		t.Fatalf("%q, %v", dev, err)
	}
	for _, bad := range []string{"", "zz", one + "00", "../../sda"} {
		if _, err := g.Device(ctx, ctxOf(bad), true); !errors.Is(err, node.ErrContext) {
			t.Errorf("diskUUID %q: %v", bad, err)
		}
	}
	if _, err := g.Device(ctx, ctxOf(two), true); !errors.Is(err, node.ErrNoDevice) {
		t.Errorf("absent: %v", err)
	}

	// A link that was left behind leads to a disk whose own identity differs.
	if err := h.Symlink("../../sdb", byID+"/wwn-0x"+two); err != nil {
		t.Fatal(err)
	}
	if dev, err := g.Device(ctx, ctxOf(two), false); !errors.Is(err, node.ErrNoDevice) || !strings.Contains(err.Error(), "naa."+one) {
		t.Errorf("stale link: %q, %v", dev, err)
	}
	if dev, err := g.Device(ctx, ctxOf(one), false); err != nil || dev != "/dev/sdb" {
		t.Errorf("%q, %v", dev, err)
	}
	// Where the kernel tells no identity, two links to one device are both refused.
	blind := newGuest(t, Config{Host: override{h, map[string]string{"/sys/block/sdb/device/wwid": ""}}})
	for _, w := range []string{one, two} {
		if dev, err := blind.Device(ctx, ctxOf(w), false); !errors.Is(err, node.ErrNoDevice) || !strings.Contains(err.Error(), "both") {
			t.Errorf("contradicting links: %q, %v", dev, err)
		}
	}
	if err := h.Remove(byID + "/wwn-0x" + two); err != nil {
		t.Fatal(err)
	}
	if dev, err := blind.Device(ctx, ctxOf(one), false); err != nil || dev != "/dev/sdb" {
		t.Errorf("%q, %v", dev, err)
	}
	// A link to what is no disk.
	if err := h.Symlink("/etc", byID+"/wwn-0x"+two); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Device(ctx, ctxOf(two), false); !errors.Is(err, node.ErrNoDevice) {
		t.Errorf("link to a directory: %v", err)
	}
	if all, err := g.Devices(); err != nil || strings.Join(all, " ") != "/dev/sdb /etc" {
		t.Errorf("devices %v, %v", all, err)
	}
}

func TestDeviceAppearsLate(t *testing.T) {
	for _, watched := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			h, s := newNode(t)
			cfg := Config{Host: h}
			changed := make(chan struct{}, 1)
			if watched {
				cfg.Watch = func(context.Context, string) (<-chan struct{}, error) { return changed, nil }
			}
			g := newGuest(t, cfg)
			const late = 7300 * time.Millisecond
			time.AfterFunc(late, func() {
				plug(t, h, s, one)
				changed <- struct{}{}
			})
			start := time.Now()
			dev, err := g.Device(t.Context(), ctxOf(one), true)
			took := time.Since(start)
			if err != nil || dev != "/dev/sdb" {
				t.Fatalf("%q, %v after %s", dev, err, took)
			}
			if took < late || took > late+2*time.Second || watched && took != late {
				t.Errorf("watched=%t: found after %s", watched, took)
			}

			start = time.Now()
			_, err = g.Device(t.Context(), ctxOf(two), true)
			if took := time.Since(start); took != 30*time.Second || !errors.Is(err, node.ErrNoDevice) {
				t.Errorf("gave up after %s: %v", took, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err = g.Device(ctx, ctxOf(two), true); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("caller's deadline: %v", err)
			}
		})
	}
}

// scanned is a host whose bus notices a disk only when it is asked to scan.
type scanned struct {
	*host.Memory
	scan func()
}

func (s scanned) WriteFile(p string, data []byte, perm fs.FileMode) error {
	if p == "/sys/class/scsi_host/host0/scan" && string(data) == "- - -" {
		s.scan()
	}
	return s.Memory.WriteFile(p, data, perm)
}

func TestBusIsScanned(t *testing.T) {
	h, s := newNode(t)
	n := 0
	g := newGuest(t, Config{Host: scanned{h, func() {
		if n++; n == 1 {
			plug(t, h, s, one)
		}
	}}})
	if _, err := g.Device(context.Background(), ctxOf(one), false); !errors.Is(err, node.ErrNoDevice) || n != 0 {
		t.Errorf("without wait: %v, %d scans", err, n)
	}
	if dev, err := g.Device(context.Background(), ctxOf(one), true); err != nil || dev != "/dev/sdb" || n != 1 {
		t.Errorf("%q, %v, %d scans", dev, err, n)
	}
}

func TestRescan(t *testing.T) {
	h, s := newNode(t)
	plug(t, h, s, one)
	g := newGuest(t, Config{Host: h})
	if err := s.Grow(one, 3<<20); err != nil {
		t.Fatal(err)
	}
	if n, _ := h.DeviceSize("/dev/sdb"); n != 1<<20 {
		t.Fatalf("size %d before", n)
	}
	if err := g.Rescan(context.Background(), byID+"/wwn-0x"+one); err != nil {
		t.Fatal(err)
	}
	if n, _ := h.DeviceSize("/dev/sdb"); n != 3<<20 {
		t.Fatalf("size %d after", n)
	}
	if err := g.Rescan(context.Background(), "/dev/sdz"); err == nil {
		t.Fatal("rescan of nothing passed")
	}
}

func TestConfig(t *testing.T) {
	if _, err := New(Config{}); err == nil || !strings.Contains(err.Error(), "Host") {
		t.Error(err)
	}
	h, _ := newNode(t)
	if _, err := New(Config{Host: h, Wait: -1}); err == nil || !strings.Contains(err.Error(), "Wait") {
		t.Error(err)
	}
}
