package host

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"syscall"

	"k8s.io/mount-utils"

	"github.com/csilab/csilab/sim/host/scsi"
)

func init() {
	commands["mount"] = cmdMount
	commands["umount"] = cmdUmount
}

// mountRequest is what mount(8) makes of its arguments.
type mountRequest struct {
	source, target, fstype string
	bind, remount          bool
	ro, rw                 bool
	noCanonicalize         bool
	opts                   []string // to be shown
}

// parseMount reads the arguments of mount(8). A nil error with target "" asks
// for the table.
func parseMount(args []string) (mountRequest, error) {
	var r mountRequest
	var names []string
	option := func(o string) error {
		switch o {
		case "", "defaults", "_netdev", "nofail", "auto", "noauto", "users", "user",
			"private", "rprivate", "shared", "rshared", "slave", "rslave":
		case "bind":
			r.bind = true
		case "remount":
			r.remount = true
		case "ro":
			r.ro, r.rw = true, false
		case "rw":
			r.rw, r.ro = true, false
		case "rbind", "loop", "move":
			return fmt.Errorf("mount: option %q is not supported by memory hosts", o)
		default:
			r.opts = append(r.opts, o)
		}
		return nil
	}
	for i := 0; i < len(args); i++ {
		a := args[i]
		value := func() string {
			if i+1 < len(args) {
				i++
				return args[i]
			}
			return ""
		}
		os := ""
		switch {
		case a == "-t":
			r.fstype = value()
		case a == "-o":
			os = value()
		case strings.HasPrefix(a, "-o"):
			os = a[2:]
		case a == "-r":
			os = "ro"
		case a == "-w":
			os = "rw"
		case a == "--bind", a == "-B":
			os = "bind"
		case a == "--no-canonicalize", a == "-c":
			r.noCanonicalize = true
		case strings.HasPrefix(a, "--make-"):
			os = "private"
			r.remount, r.bind = true, true
		case strings.HasPrefix(a, "-"):
			return r, fmt.Errorf("mount: option %q is not supported by memory hosts", a)
		default:
			names = append(names, a)
		}
		for o := range strings.SplitSeq(os, ",") {
			if err := option(o); err != nil {
				return r, err
			}
		}
	}
	switch {
	case len(names) > 2:
		return r, fmt.Errorf("mount: bad usage")
	case len(names) == 2:
		r.source, r.target = names[0], names[1]
	case len(names) == 1 && r.remount:
		r.target = names[0]
	case len(names) == 1:
		//lint:ignore ST1005 it is mount(8)'s own text
		return r, fmt.Errorf("mount: %s: can't find in /etc/fstab.", names[0])
	}
	return r, nil
}

// Exit statuses of mount(8) and umount(8).
const (
	mountUsage = 1
	mountFail  = 32
)

func cmdMount(h *Memory, out, errs io.Writer, args []string) int {
	r, err := parseMount(args)
	if err != nil {
		fmt.Fprintln(errs, err)
		return mountUsage
	}
	if r.target == "" {
		for _, m := range h.ns.table {
			fmt.Fprintf(out, "%s on %s type %s (%s)\n", m.source, h.ns.where(m), m.sb.fstype, strings.Join(m.options(), ","))
		}
		return 0
	}
	text, warning := h.mount(r)
	if warning != "" {
		fmt.Fprintf(errs, "mount: %s: WARNING: %s\n", r.target, warning)
	}
	if helperSaid(text) {
		fmt.Fprintln(errs, text)
		return mountFail
	}
	if text != "" {
		fmt.Fprintf(errs, "mount: %s: %s\n", r.target, text)
		return mountFail
	}
	return 0
}

// mount does a request. It returns "" or what mount(8) of util-linux 2.38 says,
// and what it warns of.
func (h *Memory) mount(r mountRequest) (text, warning string) {
	// A device that can't be written to is mounted read-only, unless rw was asked for.
	if !r.ro && !r.bind && !r.remount && r.fstype != "tmpfs" && !r.isShare() {
		if d, err := h.device(r.source); err == nil && d.ro {
			if r.rw {
				return fmt.Sprintf("cannot mount %s read-only.", r.source), ""
			}
			r.ro, warning = true, "source write-protected, mounted read-only."
		}
	}
	if text = h.doMount(r); text != "" {
		warning = ""
	}
	return text, warning
}

func (h *Memory) doMount(r mountRequest) string {
	at, err := h.ns.walk(r.target, true)
	switch {
	case errors.Is(err, syscall.ENOENT) && !r.remount:
		return "mount point does not exist."
	case err != nil:
		return "mount point not mounted or bad option."
	}
	if r.remount {
		return h.remount(r, at)
	}
	if r.bind {
		src, err := h.ns.walk(r.source, true)
		if err != nil {
			return fmt.Sprintf("special device %s does not exist.", r.source)
		}
		if src.n.mode.IsDir() != at.n.mode.IsDir() {
			return "mount(2) system call failed: Not a directory."
		}
		// The new mount has the flags of the one it is taken from.
		m := h.ns.attach(at, src.n, src.m.source, src.m.ro || r.ro, slices.Clone(src.m.opts))
		if m.remote = src.m.remote; m.remote != nil {
			h.remotes++
		}
		return ""
	}
	if !at.n.mode.IsDir() {
		return "mount(2) system call failed: Not a directory."
	}
	if r.fstype == "tmpfs" {
		sb := newSuperblock("tmpfs", r.source, devno{0, 100 + h.ns.next})
		h.ns.attach(at, sb.root, r.source, r.ro, r.opts)
		return ""
	}
	if r.isShare() {
		return h.mountShare(r, at)
	}
	src, err := h.ns.walk(r.source, true)
	if err != nil {
		return fmt.Sprintf("special device %s does not exist.", r.source)
	}
	if src.n.mode&fs.ModeDevice == 0 {
		return fmt.Sprintf("%s is not a block device.", r.source)
	}
	source := h.ns.path(src)
	if r.noCanonicalize {
		source = r.source
	}
	return h.mountDevice(r, at, src.n, source)
}

func (h *Memory) mountDevice(r mountRequest, at place, node *inode, source string) string {
	const wrong = "wrong fs type, bad option, bad superblock on %s, missing codepage or helper program, or other error."
	d, err := h.open(node)
	if err != nil {
		return fmt.Sprintf("special device %s does not exist.", source)
	}
	if h.heldByMap(d) {
		return fmt.Sprintf("%s already mounted or mount point busy.", source)
	}
	if t := r.fstype; t != "" && t != "auto" && t != "ext3" && t != "ext4" && t != "xfs" {
		return fmt.Sprintf("unknown filesystem type '%s'.", t)
	}
	for _, m := range h.ns.table {
		if m.sb.vol == nil || m.sb.vol.dev != d {
			continue
		}
		// One device has one superblock on a node (get_tree_bdev): it is
		// shared, must agree on ro, and can't be twice at one place.
		if m.sb.ro != r.ro || at.m == m && at.n == m.root {
			return fmt.Sprintf("%s already mounted on %s.", source, h.ns.where(m))
		}
		if r.fstype != "" && r.fstype != "auto" && r.fstype != m.sb.fstype {
			return fmt.Sprintf(wrong, source)
		}
		h.ns.attach(at, m.sb.root, source, false, r.opts)
		return ""
	}
	for _, sb := range h.leaving {
		if sb.vol.dev == d {
			h.now.queued = true // what was mounted before is still being written out
			return scsi.ErrQueued.Error()
		}
	}
	v, err := load(d)
	switch {
	case errors.Is(err, errUnclean):
		return "mount(2) system call failed: Structure needs cleaning."
	case errors.Is(err, errNoFilesystem):
		return fmt.Sprintf(wrong, source)
	case err != nil:
		return fmt.Sprintf("can't read superblock on %s.", source)
	}
	if r.fstype != "" && r.fstype != "auto" && r.fstype != v.head.Type &&
		!(r.fstype == "ext4" && v.head.Type == "ext3") { // ext4 mounts ext3 (ext4(5))
		return fmt.Sprintf(wrong, source)
	}
	if v.head.Type == "xfs" && !slices.Contains(r.opts, "nouuid") {
		// xfs(5), nouuid: a second filesystem with the same UUID is refused,
		// which is what a clone or a restored snapshot is on the same node.
		for _, m := range h.ns.table {
			if o := m.sb.vol; o != nil && o.head.Type == "xfs" && o.head.UUID == v.head.UUID {
				return fmt.Sprintf(wrong, source)
			}
		}
	}
	v.sb.ro = r.ro
	if !r.ro {
		// A mount for writing writes the superblock.
		v.head.Checked, v.changed = false, true
		if err := v.commit(); err != nil {
			return fmt.Sprintf("can't read superblock on %s.", source)
		}
	}
	d.refs++
	h.ns.attach(at, v.sb.root, source, false, r.opts)
	return ""
}

func (h *Memory) remount(r mountRequest, at place) string {
	if at.n != at.m.root {
		return "mount point not mounted or bad option."
	}
	if r.bind {
		// MS_REMOUNT|MS_BIND sets the flags of this mount only (mount(2)).
		at.m.ro = r.ro
		at.m.opts = mergeOptions(at.m.opts, r.opts)
		return ""
	}
	if at.m.remote != nil { // the superblock is the server's
		at.m.ro, at.m.opts = r.ro, mergeOptions(at.m.opts, r.opts)
		return ""
	}
	sb := at.m.sb
	if r.ro && !sb.ro {
		if err := sb.sync(); err != nil {
			return "cannot remount " + at.m.source + " read-only."
		}
	}
	sb.ro, at.m.ro = r.ro, r.ro
	at.m.opts = mergeOptions(at.m.opts, r.opts)
	return ""
}

func mergeOptions(old, fresh []string) []string {
	for _, o := range fresh {
		if !slices.Contains(old, o) {
			old = append(old, o)
		}
	}
	return old
}

func cmdUmount(h *Memory, _, errs io.Writer, args []string) int {
	lazy := false
	var targets []string
	for _, a := range args {
		switch {
		case a == "-l" || a == "--lazy":
			lazy = true
		case a == "-f" || a == "--force" || a == "-v":
		case strings.HasPrefix(a, "-"):
			fmt.Fprintf(errs, "umount: option %q is not supported by memory hosts\n", a)
			return mountUsage
		default:
			targets = append(targets, a)
		}
	}
	if len(targets) == 0 {
		fmt.Fprintln(errs, "umount: bad usage")
		return mountUsage
	}
	status := 0
	for _, t := range targets {
		if text := h.umount(t, lazy); text != "" {
			fmt.Fprintf(errs, "umount: %s: %s\n", t, text)
			status = mountFail
		}
	}
	return status
}

// umount takes away the last mount at a path, or of a device. It returns "" or
// what umount(8) says.
func (h *Memory) umount(target string, lazy bool) string {
	at, err := h.ns.walk(target, true)
	if errors.Is(err, syscall.ENOENT) {
		return "no mount point specified."
	} else if err != nil {
		return "umount failed: " + err.Error() + "."
	}
	m := at.m
	if at.n != m.root || m.parent == nil {
		i := -1
		if at.n.mode&fs.ModeDevice != 0 {
			for j, x := range h.ns.table {
				if x.sb.vol != nil && x.sb.dev == at.n.dev {
					i = j
				}
			}
		}
		if i < 0 {
			return "not mounted."
		}
		m = h.ns.table[i]
	}
	if !lazy && (m.busy > 0 || h.ns.children(m)) {
		return "target is busy."
	}
	h.detachTree(m)
	h.shutDown()
	return ""
}

// detachTree takes a mount and those below it away.
func (h *Memory) detachTree(m *mounted) {
	for _, c := range slices.Backward(slices.Clone(h.ns.table)) {
		if c.parent == m {
			h.detachTree(c)
		}
	}
	h.ns.detach(m)
	if m.remote != nil {
		h.remotes--
		h.cfg.Files.unmounted(m.remote.share)
		return
	}
	if m.sb.vol != nil && m.sb.refs == 0 {
		h.leaving = append(h.leaving, m.sb)
	}
}

// memoryMounter is mount.Interface of a node in memory.
type memoryMounter struct {
	mountCommands
	h *Memory
}

func (m memoryMounter) List() ([]mount.MountPoint, error) {
	leave, err := m.h.enter("open", "/proc/mounts")
	if err != nil {
		return nil, err
	}
	defer leave()
	out := make([]mount.MountPoint, 0, len(m.h.ns.table))
	for _, x := range m.h.ns.table {
		out = append(out, mount.MountPoint{Device: x.source, Path: m.h.ns.where(x), Type: x.sb.fstype, Opts: x.options()})
	}
	return out, nil
}

// IsLikelyNotMountPoint implements mount.Interface with statx's mount root
// attribute (Linux 5.8), which knows bind mounts too.
func (m memoryMounter) IsLikelyNotMountPoint(file string) (bool, error) {
	is, err := m.IsMountPoint(file)
	return !is, err
}

func (m memoryMounter) IsMountPoint(file string) (bool, error) {
	return during(m.h, "statx", file, func() (bool, error) { return m.isMountPoint(file) })
}

func (m memoryMounter) isMountPoint(file string) (bool, error) {
	at, err := m.h.ns.walk(file, true)
	if errors.Is(err, fs.ErrNotExist) {
		return false, fs.ErrNotExist
	}
	if err == nil {
		err = at.alive()
	}
	if err != nil {
		return false, pathError("statx", file, err)
	}
	return at.n == at.m.root, nil
}

func (m memoryMounter) CanSafelySkipMountPointCheck() bool { return true }

// GetMountRefs finds the other mounts of the same part of the same filesystem
// (SearchMountPoints in mount_linux.go).
func (m memoryMounter) GetMountRefs(pathname string) ([]string, error) {
	return during(m.h, "stat", pathname, func() ([]string, error) { return m.mountRefs(pathname) })
}

func (m memoryMounter) mountRefs(pathname string) ([]string, error) {
	at, err := m.h.ns.walk(pathname, true)
	if errors.Is(err, fs.ErrNotExist) || err == nil && at.alive() != nil {
		return []string{}, nil
	}
	if err != nil {
		return nil, pathError("stat", pathname, err)
	}
	var refs []string
	for _, x := range m.h.ns.table {
		if x != at.m && x.root == at.n {
			refs = append(refs, m.h.ns.where(x))
		}
	}
	return refs, nil
}
