package scsi_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host/scsi"
	"github.com/csilab/csilab/sim/host/scsi/scsitest"
)

const (
	iqn  = "iqn.1994-05.com.redhat:node-1"
	wwpn = "10000000c9000001"
	mib  = 1 << 20
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// node is a stack that is on, over a network of n ports.
func node(t testing.TB, p scsi.Protocol, n int) (*scsi.Stack, *scsitest.SAN, string) {
	t.Helper()
	store := disk.NewMemory()
	ports := scsitest.Ports(p, n)
	san := scsitest.New(store, ports...)
	initiator := iqn
	cfg := scsi.Config{SAN: san, FirstHost: 1}
	if p == scsi.FC {
		initiator = wwpn
		cfg.Adapters.WWPNs = []string{wwpn}
	} else {
		cfg.Adapters.IQN = iqn
	}
	s := scsi.New(cfg)
	s.Boot()
	t.Cleanup(func() {
		s.Halt()
		if n := san.Logins(initiator); n != 0 {
			t.Errorf("%d log-ins are left", n)
		}
		store.Close()
	})
	if p == scsi.ISCSI {
		for _, x := range ports {
			must1(s.Login(context.Background(), s.AddRecord(x).RecordKey))(t)
		}
	}
	return s, san, initiator
}

func must1[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		must(t, err)
		return v
	}
}

// both runs a test over iSCSI and FC.
func both(t *testing.T, ports int, f func(t *testing.T, s *scsi.Stack, san *scsitest.SAN, initiator string)) {
	for _, p := range []scsi.Protocol{scsi.ISCSI, scsi.FC} {
		t.Run(string(p), func(t *testing.T) {
			s, san, initiator := node(t, p, ports)
			f(t, s, san, initiator)
		})
	}
}

// scan asks all targets for their units.
func scan(t testing.TB, s *scsi.Stack) {
	t.Helper()
	for n := range 8 {
		if err := s.Scan(n, scsi.Any, scsi.Any, scsi.Any); err != nil && !errors.Is(err, syscall.ENODEV) {
			t.Fatal(err)
		}
	}
}

func read(s *scsi.Stack, name string, n int) (string, error) {
	b := make([]byte, n)
	err := s.ReadAt(name, b, 0)
	return string(b), err
}

func TestUnitShowsUpWithAScan(t *testing.T) {
	both(t, 2, func(t *testing.T, s *scsi.Stack, san *scsitest.SAN, initiator string) {
		must(t, san.Volume("v", mib))
		must(t, san.Export("v", initiator, 3))
		if got := s.Disks(); len(got) != 0 {
			t.Errorf("disks before a scan: %v", got)
		}
		scan(t, s)
		ds := s.Disks()
		if len(ds) != 2 || ds[0].WWN != scsitest.WWN("v") || ds[0].LUN != 3 || ds[0].Bytes != mib {
			t.Fatalf("disks %+v", ds)
		}
		ms := s.Maps()
		if len(ms) != 1 || ms[0].Alias != "mpatha" || len(ms[0].Paths()) != 2 || ms[0].WWID != scsitest.WWN("v") {
			t.Fatalf("maps %+v", ms)
		}
		must(t, s.WriteAt("dm-0", []byte("data"), 0))
		for _, d := range ds {
			if got, err := read(s, d.Name, 4); err != nil || got != "data" {
				t.Errorf("%s: read %q, %v", d.Name, got, err)
			}
		}
		must(t, s.Sync("dm-0"))
		img := must1(san.Store.Open("v"))(t)
		defer img.Close()
		b := make([]byte, 4)
		if _, err := img.ReadAt(b, 0); err != nil || !bytes.Equal(b, []byte("data")) {
			t.Errorf("the volume holds %q, %v", b, err)
		}
	})
}

func TestStaleDisk(t *testing.T) {
	both(t, 2, func(t *testing.T, s *scsi.Stack, san *scsitest.SAN, initiator string) {
		for _, id := range []string{"old", "new"} {
			must(t, san.Volume(id, mib))
			img := must1(san.Store.Open(id))(t)
			must1(img.WriteAt([]byte(id), 0))(t)
			img.Close()
		}
		must(t, san.Export("old", initiator, 0))
		scan(t, s)
		san.Unexport(initiator, 0)
		scan(t, s)
		if len(s.Disks()) != 2 || len(s.Maps()) != 1 {
			t.Fatalf("after the unexport: %d disks, %d maps", len(s.Disks()), len(s.Maps()))
		}
		for _, name := range []string{"dm-0", s.Disks()[0].Name} {
			if _, err := read(s, name, 3); !errors.Is(err, syscall.EIO) {
				t.Errorf("read of %s without a unit: %v", name, err)
			}
		}
		// The number is given to another unit: it is what I/O reaches, under the
		// identity of the old one.
		must(t, san.Export("new", initiator, 0))
		scan(t, s)
		if m := s.Maps()[0]; len(s.Maps()) != 1 || m.WWID != scsitest.WWN("old") {
			t.Fatalf("maps %+v", m)
		}
		if got, err := read(s, "dm-0", 3); err != nil || got != "new" {
			t.Errorf("read %q, %v through the stale map", got, err)
		}
		for _, d := range s.Disks() {
			if d.WWN != scsitest.WWN("old") {
				t.Errorf("%s has noticed", d.Name)
			}
			must(t, s.Delete(d.Name))
		}
		if len(s.Disks()) != 0 || len(s.Maps()) != 0 {
			t.Errorf("after the delete: %v, %v", s.Disks(), s.Maps())
		}
		scan(t, s)
		if m := s.Maps(); len(m) != 1 || m[0].WWID != scsitest.WWN("new") || m[0].Alias != "mpathb" {
			t.Errorf("after the delete and a scan: %+v", m)
		}
	})
}

func TestPathsComeAndGo(t *testing.T) {
	both(t, 2, func(t *testing.T, s *scsi.Stack, san *scsitest.SAN, initiator string) {
		p := scsi.ISCSI
		if initiator == wwpn {
			p = scsi.FC
		}
		ports := scsitest.Ports(p, 2)
		must(t, san.Volume("v", mib))
		must(t, san.Export("v", initiator, 1))
		scan(t, s)
		steps := []struct {
			down []bool
			ok   bool
		}{{[]bool{false, false}, true}, {[]bool{true, false}, true}, {[]bool{true, true}, false}, {[]bool{false, true}, true}, {[]bool{false, false}, true}}
		for i, step := range steps {
			for j, down := range step.down {
				san.Down("", ports[j], down)
			}
			s.Refresh()
			err := s.WriteAt("dm-0", []byte{byte(i)}, 0)
			if step.ok && err != nil || !step.ok && !errors.Is(err, syscall.EIO) {
				t.Errorf("step %d: %v", i, err)
			}
			for j, d := range s.Disks() {
				want := scsi.Ready
				if step.down[j] {
					want = scsi.Faulty
				}
				if got := s.Check(d); got != want {
					t.Errorf("step %d: path %d is %s, want %s", i, j, got, want)
				}
			}
		}
		san.Standby(ports[0], true)
		if got := s.Check(s.Disks()[0]); got != scsi.Ghost {
			t.Errorf("standby path is %s", got)
		}
		must(t, s.WriteAt("dm-0", []byte("x"), 0))
		san.Down("", ports[1], true)
		if err := s.WriteAt("dm-0", []byte("x"), 0); !errors.Is(err, syscall.EIO) {
			t.Errorf("I/O with a standby path only: %v", err)
		}
	})
}

func TestGrowth(t *testing.T) {
	both(t, 2, func(t *testing.T, s *scsi.Stack, san *scsitest.SAN, initiator string) {
		must(t, san.Volume("v", mib))
		must(t, san.Export("v", initiator, 1))
		scan(t, s)
		must(t, san.Grow("v", 2*mib))
		scan(t, s)
		size := func(name string) int64 {
			n, _ := s.Capacity(name)
			return n
		}
		ds := s.Disks()
		if size(ds[0].Name) != mib || size("dm-0") != mib {
			t.Error("the new size is seen without a rescan")
		}
		must(t, s.Rescan(ds[0].Name))
		if size(ds[0].Name) != 2*mib || size("dm-0") != mib {
			t.Error("a rescan of a disk is of that disk")
		}
		m := s.Maps()[0]
		if err := s.Resize(m); err == nil {
			t.Error("a map was resized over a path that is smaller")
		}
		must(t, s.Rescan(ds[1].Name))
		must(t, s.Resize(m))
		if size("dm-0") != 2*mib {
			t.Error("map not resized")
		}
	})
}

func TestRecheckWWID(t *testing.T) {
	for _, recheck := range []bool{false, true} {
		store := disk.NewMemory()
		port := scsitest.Ports(scsi.ISCSI, 1)[0]
		san := scsitest.New(store, port)
		s := scsi.New(scsi.Config{SAN: san, Adapters: scsi.Adapters{IQN: iqn}, RecheckWWID: recheck})
		s.Boot()
		must1(s.Login(context.Background(), s.AddRecord(port).RecordKey))(t)
		for _, id := range []string{"old", "new"} {
			must(t, san.Volume(id, mib))
		}
		must(t, san.Export("old", iqn, 0))
		scan(t, s)
		san.Unexport(iqn, 0)
		if got := s.Check(s.Disks()[0]); got != scsi.Faulty {
			t.Errorf("path is %s", got)
		}
		must(t, san.Export("new", iqn, 0))
		s.Check(s.Disks()[0])
		var ids []string
		for _, m := range s.Maps() {
			ids = append(ids, m.WWID)
		}
		want := []string{scsitest.WWN("old")}
		if recheck {
			want = []string{scsitest.WWN("new")}
		}
		if !slices.Equal(ids, want) {
			t.Errorf("recheck_wwid %v: maps of %v, want %v", recheck, ids, want)
		}
		s.Halt()
		store.Close()
	}
}
