package host_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/host/scsi"
	"github.com/csilab/csilab/sim/host/scsi/scsitest"
)

func TestSANDamage(t *testing.T) {
	store := disk.NewMemory()
	defer store.Close()
	san := scsitest.New(store, scsitest.Ports(host.FC, 2)...)
	d := scsi.NewDamage(san)
	const wwpn = "10000000c9000001"
	n := sanNode{host.NewMemory(host.MemoryConfig{Name: "n", SAN: d, Adapters: host.Adapters{WWPNs: []string{wwpn}}}), wwpn}
	defer n.Close()
	must(t, san.Volume("v", 32<<20))
	must(t, san.Export("v", wwpn, 0))
	n.scan(t, "-")
	const dev = "/dev/mapper/mpatha"
	must(t, n.WriteAt(dev, 0, []byte("content"), true))
	d.Flip("v", 3, 1)
	if got := must1(n.ReadAt(dev, 0, 7))(t); string(got) != "conuent" {
		t.Errorf("read %q", got)
	}
	must(t, n.WriteAt(dev, 0, []byte("content"), true))
	if got := must1(n.ReadAt(dev, 0, 7))(t); string(got) != "content" {
		t.Errorf("read %q after it was written", got)
	}
	d.FailRange("v", 1<<20, 4096)
	for off, bad := range map[int64]bool{1<<20 - 4096: false, 1 << 20: true, 1<<20 + 4095: true, 1<<20 + 4096: false} {
		if _, err := n.ReadAt(dev, off, 1); errors.Is(err, syscall.EIO) != bad {
			t.Errorf("read at %d: %v", off, err)
		}
		if err := n.WriteAt(dev, off, make([]byte, 1), true); errors.Is(err, syscall.EIO) != bad {
			t.Errorf("write at %d: %v", off, err)
		}
	}
	d.Heal("v")
	must(t, n.WriteAt(dev, 1<<20, make([]byte, 1), true))

	// A superblock that went bad.
	formatAndMount(t, n, dev, staging, "ext4")
	must(t, n.Mounter().Unmount(staging))
	d.Flip("v", 20, 0xff)
	if err := n.Mounter().Mount(dev, staging, "ext4", nil); err == nil || !strings.Contains(err.Error(), "needs cleaning") {
		t.Errorf("mounted a spoiled filesystem: %v", err)
	}
}

// TestSANRecheck: with recheck_wwid a path that had failed and leads to another
// unit is not used for the old one, and the new one shows up.
func TestSANRecheck(t *testing.T) {
	store := disk.NewMemory()
	defer store.Close()
	san := scsitest.New(store, scsitest.Ports(host.FC, 1)...)
	const wwpn = "10000000c9000001"
	n := sanNode{host.NewMemory(host.MemoryConfig{Name: "n", SAN: san, Adapters: host.Adapters{WWPNs: []string{wwpn}}, RecheckWWID: true}), wwpn}
	defer n.Close()
	for _, id := range []string{"old", "new"} {
		must(t, san.Volume(id, 1<<20))
	}
	must(t, san.Export("old", wwpn, 0))
	n.scan(t, "-")
	san.Unexport(wwpn, 0)
	if _, err := n.ReadAt("/dev/mapper/mpatha", 0, 1); !errors.Is(err, syscall.EIO) {
		t.Errorf("read without a unit: %v", err)
	}
	must(t, san.Export("new", wwpn, 0))
	if _, err := n.ReadAt("/dev/mapper/mpatha", 0, 1); err == nil {
		t.Error("the old map leads to the new unit")
	}
	if _, err := n.Lstat("/dev/mapper/mpatha"); err == nil {
		t.Error("the old map is left")
	}
	must1(n.ReadAt("/dev/disk/by-id/wwn-0x"+scsitest.WWN("new"), 0, 1))(t)
}
