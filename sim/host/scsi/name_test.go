package scsi_test

import (
	"testing"

	"github.com/csilab/csilab/sim/host/scsi"
)

func TestDiskNames(t *testing.T) {
	for i, want := range map[int]struct {
		name string
		no   string
	}{0: {"sda", "8:0"}, 1: {"sdb", "8:16"}, 15: {"sdp", "8:240"}, 16: {"sdq", "65:0"}, 25: {"sdz", "65:144"}, 26: {"sdaa", "65:160"},
		255: {"sdiv", "135:240"}, 256: {"sdiw", "8:256"}, 701: {"sdzz", "131:720"}, 702: {"sdaaa", "131:736"}} {
		if got := scsi.DiskName(i); got != want.name {
			t.Errorf("disk %d is %s, want %s", i, got, want.name)
		}
		if got := scsi.DiskNo(i).String(); got != want.no {
			t.Errorf("%s has the number %s, want %s", want.name, got, want.no)
		}
	}
	numbers := map[scsi.Devno]bool{}
	for i := range 2000 {
		if n, ok := scsi.DiskIndex(scsi.DiskName(i)); !ok || n != i {
			t.Fatalf("%s is disk %d, %v", scsi.DiskName(i), n, ok)
		}
		if numbers[scsi.DiskNo(i)] {
			t.Fatalf("two disks have %s", scsi.DiskNo(i))
		}
		numbers[scsi.DiskNo(i)] = true
	}
	for _, bad := range []string{"", "sd", "sdA", "dm-0", "sd1", "sdaaaaa"} {
		if _, ok := scsi.DiskIndex(bad); ok {
			t.Errorf("%q is a disk", bad)
		}
	}
}
