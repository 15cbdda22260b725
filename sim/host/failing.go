package host

import (
	"fmt"
	"io/fs"
)

// What goes wrong inside a node in memory, by an administrator of the lab.

// AbortFilesystem does what a kernel does after an error in a filesystem's own
// structures (ext4's errors=remount-ro, an XFS that shuts down): whatever is
// mounted from a disk is read-only from now on, and what was not synced is not
// written any more. A new mount after an unmount is writable again. It returns
// how many filesystems that were. Errors: no such disk.
func (h *Memory) AbortFilesystem(wwn string) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	known := false
	for _, d := range h.devices {
		known = known || d.wwn == wwn && !d.gone
	}
	if !known {
		return 0, fmt.Errorf("host: disk %s on %s: %w", wwn, h.cfg.Name, fs.ErrNotExist)
	}
	done := map[*superblock]bool{}
	for _, m := range h.ns.table {
		if v := m.sb.vol; v != nil && v.dev.wwn == wwn && !done[m.sb] {
			m.sb.ro = true
			done[m.sb] = true
		}
	}
	return len(done), nil
}

// SwapNames lets the names of two disks in /dev/disk/by-id lead to each
// other's device, as a mistake of udev's rules or of a device's identity page
// does. A second call undoes it. Names of disks that are plugged in later are
// right. Errors: no such disk.
func (h *Memory) SwapNames(wwn, other string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	dir := h.dev.root.at("disk/by-id")
	from, to := links(wwn), links(other)
	for i := range from {
		a, b := dir.children[from[i]], dir.children[to[i]]
		switch {
		case a == nil:
			return fmt.Errorf("host: disk %s on %s: %w", wwn, h.cfg.Name, fs.ErrNotExist)
		case b == nil:
			return fmt.Errorf("host: disk %s on %s: %w", other, h.cfg.Name, fs.ErrNotExist)
		}
	}
	for i := range from {
		a, b := dir.children[from[i]], dir.children[to[i]]
		a.target, b.target = b.target, a.target
	}
	return nil
}
