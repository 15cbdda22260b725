package host

import (
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"

	"github.com/csilab/csilab/sim/host/scsi"
)

// realNode is what the stack asks the rest of a real node. commands and mu of
// the realSAN are held; mu is given away while I/O of the node is waited for.
type realNode struct{ x *realSAN }

func (n realNode) Taken(name string) bool {
	if n.x.luns[name] != nil {
		return true
	}
	numbers := n.x.mountedNumbers()
	n.x.stale = slices.DeleteFunc(n.x.stale, func(d *realLUN) bool { return numbers[loopNumber(d.loop.minor)] == nil })
	for _, d := range n.x.stale {
		if d.name == name {
			return true
		}
	}
	n.x.pulled = slices.DeleteFunc(n.x.pulled, func(d *realDisk) bool { return numbers[loopNumber(d.loop.minor)] == nil })
	return slices.ContainsFunc(slices.Concat(n.x.local, n.x.pulled), func(d *realDisk) bool { return d.name == name })
}

func loopNumber(minor uint32) string { return fmt.Sprintf("%d:%d", loopMajor, minor) }

// mountedNumbers are where devices are mounted in the node, by their numbers.
func (x *realSAN) mountedNumbers() map[string][]string {
	out := map[string][]string{}
	if x.in == nil {
		return out // it didn't get as far as that
	}
	_ = x.in.do(func() {
		infos, err := mount.ParseMountInfo("/proc/thread-self/mountinfo")
		if err != nil {
			return
		}
		for _, m := range infos {
			if m.Major == loopMajor {
				no := loopNumber(uint32(m.Minor))
				out[no] = append(out[no], m.MountPoint)
			}
		}
	})
	return out
}

func (n realNode) InUse(name string) bool {
	d := n.x.luns[name]
	if d == nil || d.loop == nil {
		return false
	}
	own := 1
	if d.claim != nil {
		own++
	} else {
		f, err := openLoop(int(d.loop.minor), n.x.h.cfg.Dir, unix.O_EXCL)
		if err != nil {
			return true
		}
		f.Close()
	}
	return n.x.opened(d, own)
}

// opened says whether a program of the node has a device open, apart from own
// times by this process itself. Mounts are not seen here.
func (x *realSAN) opened(d *realLUN, own int) bool {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return false
	}
	self := fmt.Sprint(os.Getpid())
	for _, p := range procs {
		if p.Name()[0] < '0' || p.Name()[0] > '9' {
			continue
		}
		count := 0
		if p.Name() == self {
			count = -own
		} else if ns, err := os.Readlink("/proc/" + p.Name() + "/ns/mnt"); err != nil || ns != x.ns {
			continue
		}
		fds, _ := filepath.Glob("/proc/" + p.Name() + "/fd/*")
		for _, fd := range fds {
			// Without asking a filesystem: that of the node would want mu for it.
			var st unix.Statx_t
			if unix.Statx(unix.AT_FDCWD, fd, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st) == nil &&
				st.Mode&unix.S_IFMT == unix.S_IFBLK && st.Rdev_major == loopMajor && st.Rdev_minor == d.loop.minor {
				count++
			}
		}
		if count > 0 {
			return true
		}
	}
	return false
}

func (n realNode) Flush(name string) error {
	d := n.x.luns[name]
	if d == nil || d.loop == nil {
		return nil
	}
	// What the page cache has may have to wait for a path, and the command that
	// ends the wait must get through.
	n.x.mu.Unlock()
	n.x.commands.Unlock()
	defer n.x.mu.Lock()
	defer n.x.commands.Lock()
	const all = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	return unix.SyncFileRange(int(d.loop.f.Fd()), 0, 0, all)
}

func (n realNode) Content(name string) scsi.Content {
	d := n.x.luns[name]
	if d == nil || d.loop == nil {
		return scsi.Content{}
	}
	if n.x.stack.Waits(name) {
		return scsi.Content{} // udev, which lsblk asks, is stuck itself
	}
	n.x.mu.Unlock()
	defer n.x.mu.Lock()
	c := scsi.Content{Mounts: n.x.mountedNumbers()[loopNumber(d.loop.minor)]}
	blkid, err := findTool("blkid")
	if err != nil {
		return c
	}
	cmd := osexec.Command(blkid, "-p", "-s", "TYPE", "-s", "UUID", "-o", "export", fmt.Sprintf("/proc/self/fd/%d", 3))
	cmd.ExtraFiles = []*os.File{d.loop.f}
	out, err := cmd.Output()
	if err != nil {
		return c // nothing is on it, or it can't be read
	}
	for line := range strings.Lines(string(out)) {
		switch k, v, _ := strings.Cut(strings.TrimSpace(line), "="); k {
		case "TYPE":
			c.Type = v
		case "UUID":
			c.UUID = v
		}
	}
	return c
}

func (n realNode) Others() []scsi.Block {
	out := []scsi.Block{{Name: "sda", Type: "disk", No: scsi.Devno{Major: scsiMajor}, Bytes: 64 << 30, Vendor: "HPE", Model: "LOGICAL VOLUME"}}
	for _, d := range n.x.local {
		out = append(out, scsi.Block{Name: d.name, Type: "disk", No: scsi.Devno{Major: loopMajor, Minor: int(d.loop.minor)}, Bytes: d.img.Size(),
			WWN: d.wwn, Vendor: "VMware", Model: "Virtual disk"})
	}
	return out
}
