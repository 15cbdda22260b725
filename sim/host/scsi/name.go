package scsi

import (
	"fmt"
	"strconv"
	"strings"
)

// Devno is a device number.
type Devno struct{ Major, Minor int }

// String is as in /sys/block/*/dev.
func (d Devno) String() string { return fmt.Sprintf("%d:%d", d.Major, d.Minor) }

// DMMajor is the major number of device-mapper. Linux gives it out at run time;
// 253 is usual.
const DMMajor = 253

// DiskName gives the name of the nth SCSI disk: sda … sdz, sdaa ….
func DiskName(i int) string {
	s := ""
	for i++; i > 0; i = (i - 1) / 26 {
		s = string(rune('a'+(i-1)%26)) + s
	}
	return "sd" + s
}

// DiskIndex is the reverse of DiskName; false for other names.
func DiskIndex(name string) (int, bool) {
	letters, ok := strings.CutPrefix(name, "sd")
	if !ok || letters == "" || len(letters) > 4 {
		return 0, false
	}
	n := 0
	for _, c := range letters {
		if c < 'a' || c > 'z' {
			return 0, false
		}
		n = n*26 + int(c-'a') + 1
	}
	return n - 1, true
}

// sdMajors are the major numbers of SCSI disks, 16 disks each (devices.txt).
var sdMajors = [16]int{8, 65, 66, 67, 68, 69, 70, 71, 128, 129, 130, 131, 132, 133, 134, 135}

// DiskNo gives the number of the nth SCSI disk. From the 257th on the majors are
// used again with minors above 255, as the sd driver does.
func DiskNo(i int) Devno {
	return Devno{sdMajors[i>>4&0xf], i&0xf<<4 | i&^0xff}
}

// mapMinor reads dm-N.
func mapMinor(name string) (int, bool) {
	rest, ok := strings.CutPrefix(name, "dm-")
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(rest)
	return n, err == nil && n >= 0 && rest == strconv.Itoa(n)
}

// friendlyName is the nth user-friendly name of multipath: mpatha, mpathb ….
func friendlyName(i int) string { return "mpath" + strings.TrimPrefix(DiskName(i), "sd") }
