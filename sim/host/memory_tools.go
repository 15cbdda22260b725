package host

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"syscall"
)

// The storage commands of a node in memory, with the flags that mount-utils
// v0.37.2 and CSI drivers use, and the texts and exit statuses of e2fsprogs
// 1.47.0, xfsprogs and util-linux 2.38.1.

func init() {
	commands["blkid"] = cmdBlkid
	commands["blockdev"] = cmdBlockdev
	for _, t := range []string{"ext3", "ext4", "xfs"} {
		commands["mkfs."+t] = func(h *Memory, out, errs io.Writer, args []string) int {
			return mkfs(h, out, errs, t, args)
		}
		commands["fsck."+t] = cmdFsck
	}
	commands["mkfs"] = func(h *Memory, out, errs io.Writer, args []string) int {
		if len(args) < 2 || args[0] != "-t" {
			fmt.Fprintln(errs, "mkfs: memory hosts want -t TYPE first")
			return 1
		}
		c := h.find("mkfs." + args[1])
		if c == nil {
			fmt.Fprintf(errs, "mkfs: failed to execute mkfs.%s: No such file or directory\n", args[1])
			return 1
		}
		return c(h, out, errs, args[2:])
	}
	commands["fsck"] = cmdFsck
	commands["e2fsck"] = cmdFsck
	commands["dumpe2fs"] = cmdDumpe2fs
	commands["tune2fs"] = cmdTune2fs
	commands["resize2fs"] = cmdResize2fs
	commands["xfs_growfs"] = cmdXfsGrowfs
	commands["xfs_io"] = cmdXfsIO
	commands["xfs_admin"] = cmdXfsAdmin
	commands["xfs_repair"] = cmdXfsRepair
	commands["sync"] = func(h *Memory, _, errs io.Writer, _ []string) int {
		if err := h.syncAll(); err != nil {
			fmt.Fprintf(errs, "sync: error syncing: %v\n", err)
			return 1
		}
		return 0
	}
	// udev has nothing to do: device links are there as soon as the disk is.
	commands["udevadm"] = func(*Memory, io.Writer, io.Writer, []string) int { return 0 }
}

// operands are the arguments that are no flags; with lists the flags that take
// a value as the next argument.
func operands(args []string, with string) (ops []string, flags map[string]string) {
	flags = map[string]string{}
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case !strings.HasPrefix(a, "-") || a == "-":
			ops = append(ops, a)
		case len(a) == 2 && strings.Contains(with, a[1:]) && i+1 < len(args):
			flags[a] = args[i+1]
			i++
		case len(a) > 2 && a[1] != '-' && strings.Contains(with, a[1:2]):
			flags[a[:2]] = a[2:]
		default:
			flags[a] = ""
		}
	}
	return ops, flags
}

// last is the last operand, "" when there is none.
func last(ops []string) string {
	if len(ops) == 0 {
		return ""
	}
	return ops[len(ops)-1]
}

// message is what strerror says about the errors that commands meet.
func message(err error) string {
	switch {
	case errors.Is(err, syscall.ENOENT):
		return "No such file or directory"
	case errors.Is(err, syscall.ENXIO):
		return "No such device or address"
	case errors.Is(err, syscall.EIO):
		return "Input/output error"
	case errors.Is(err, syscall.ENOTBLK):
		return "Block device required"
	case errors.Is(err, syscall.EPERM):
		return "Operation not permitted"
	case errors.Is(err, syscall.ENOSPC):
		return "No space left on device"
	}
	return err.Error()
}

// mountOf is the mounted filesystem of a disk, or nil.
func (h *Memory) mountOf(d *device) (*volume, *mounted) {
	for _, m := range h.ns.table {
		if m.sb.vol != nil && m.sb.vol.dev == d {
			return m.sb.vol, m
		}
	}
	return nil, nil
}

// cmdBlkid knows low-level probing (-p) and the export format.
func cmdBlkid(h *Memory, out, errs io.Writer, args []string) int {
	const notFound = 2 // blkid(8), exit status
	ops, flags := operands(args, "sotuLUcO")
	if len(ops) == 0 {
		fmt.Fprintln(errs, "blkid: memory hosts want a device")
		return 4
	}
	status := notFound
	for _, dev := range ops {
		d, err := h.device(dev)
		if err != nil {
			// Said nothing and exited 2 for a device that doesn't exist (2.38.1).
			continue
		}
		token, err := probe(d)
		if err != nil {
			if h.cfg.BlkidHidesErrors {
				continue
			}
			fmt.Fprintf(errs, "error: %s: %s\n", dev, message(err))
			return 1
		}
		if token == "" {
			continue
		}
		status = 0
		tokens := []string{token}
		if head, err := readHeader(d); err == nil {
			tokens = append([]string{"UUID=" + head.UUID}, tokens...)
		}
		var wanted []string
		for i, a := range args {
			if a == "-s" && i+1 < len(args) {
				wanted = append(wanted, args[i+1])
			}
		}
		var shown []string
		for _, t := range tokens {
			name, value, _ := strings.Cut(t, "=")
			if len(wanted) > 0 && !slices.Contains(wanted, name) {
				continue
			}
			switch flags["-o"] {
			case "export":
				shown = append(shown, t)
			case "value":
				shown = append(shown, value)
			default:
				shown = append(shown, fmt.Sprintf("%s=%q", name, value))
			}
		}
		switch flags["-o"] {
		case "export":
			fmt.Fprintf(out, "DEVNAME=%s\n%s\n", dev, strings.Join(shown, "\n"))
		case "value":
			fmt.Fprintln(out, strings.Join(shown, "\n"))
		default:
			fmt.Fprintf(out, "%s: %s\n", dev, strings.Join(shown, " "))
		}
	}
	return status
}

func cmdBlockdev(h *Memory, out, errs io.Writer, args []string) int {
	ops, flags := operands(args, "")
	for _, dev := range ops {
		d, err := h.device(dev)
		if err != nil {
			fmt.Fprintf(errs, "blockdev: cannot open %s: %s\n", dev, message(err))
			return 1
		}
		for f := range flags {
			switch f {
			case "--getsize64":
				fmt.Fprintln(out, d.size)
			case "--getsz":
				fmt.Fprintln(out, d.size/512)
			case "--getss":
				fmt.Fprintln(out, 512)
			case "--getro":
				if d.ro {
					fmt.Fprintln(out, 1)
				} else {
					fmt.Fprintln(out, 0)
				}
			case "--flushbufs":
				if err := d.flush(); err != nil {
					fmt.Fprintf(errs, "blockdev: ioctl error on BLKFLSBUF: %s\n", message(err))
					return 1
				}
			case "--report":
				fmt.Fprintf(out, "RO    RA   SSZ   BSZ        StartSec            Size   Device\nrw   256   512  4096               0 %15d   %s\n", d.size, dev)
			default:
				fmt.Fprintf(errs, "blockdev: Unknown command: %s\n", f)
				return 1
			}
		}
	}
	return 0
}

// mkfs makes an ext3, ext4 or xfs filesystem.
func mkfs(h *Memory, out, errs io.Writer, fstype string, args []string) int {
	name, with := "mke2fs", "bCEgGiIJNLmMoOrtTUzd"
	if fstype == "xfs" {
		name, with = "mkfs.xfs", "bcdilLmnprs"
	}
	ops, flags := operands(args, with)
	dev := last(ops)
	if fstype != "xfs" && len(ops) == 2 {
		// The second is the size in blocks, which is not modelled.
		fmt.Fprintf(errs, "%s: memory hosts make filesystems of the size of the device\n", name)
		return 1
	}
	d, err := h.device(dev)
	if err != nil {
		fmt.Fprintf(errs, "%s: cannot open %s: %s\n", name, dev, message(err))
		return 1
	}
	if v, _ := h.mountOf(d); v != nil {
		if fstype == "xfs" {
			fmt.Fprintf(errs, "mkfs.xfs: %s contains a mounted filesystem\n", dev)
		} else {
			fmt.Fprintf(errs, "%s is mounted; will not make a filesystem here!\n", dev)
		}
		return 1
	}
	if h.heldByMap(d) {
		if fstype == "xfs" {
			fmt.Fprintf(errs, "mkfs.xfs: cannot open %s: Device or resource busy\n", dev)
		} else {
			fmt.Fprintf(errs, "%s is apparently in use by the system; will not make a filesystem here!\n", dev)
		}
		return 1
	}
	if fstype == "xfs" {
		if d.size < xfsMinimum {
			fmt.Fprintln(errs, "Filesystem must be larger than 300MB.")
			return 1
		}
		_, force := flags["-f"]
		token, err := probe(d)
		if err == nil && token != "" && !force {
			_, what, _ := strings.Cut(token, "=")
			fmt.Fprintf(errs, "mkfs.xfs: %s appears to contain an existing filesystem (%s).\nmkfs.xfs: Use the -f option to force overwrite.\n", dev, what)
			return 1
		}
	}
	if d.size < 64*blockSize {
		fmt.Fprintf(errs, "%s: device %s is too small\n", name, dev)
		return 1
	}
	h.made[d.wwn]++
	uuid := UUIDOf(fmt.Sprintf("%d|host|%s|mkfs|%s|%d", h.cfg.Seed, h.cfg.Name, d.wwn, h.made[d.wwn]))
	if u := flags["-U"]; u != "" {
		uuid = u
	}
	head, err := makeFilesystem(d, fstype, uuid)
	if err != nil {
		fmt.Fprintf(errs, "%s: %s while writing to %s\n", name, message(err), dev)
		return 1
	}
	fmt.Fprintf(out, "Creating filesystem with %d 4k blocks and %d inodes\nFilesystem UUID: %s\n", head.Blocks, head.Blocks/4, head.UUID)
	return 0
}

// cmdFsck checks ext3 and ext4; for xfs it does nothing (fsck.xfs(8)). Exit
// statuses as of fsck(8): 4 errors left, 8 operational error.
func cmdFsck(h *Memory, out, errs io.Writer, args []string) int {
	ops, flags := operands(args, "tbBCjlELz")
	dev := last(ops)
	d, err := h.device(dev)
	if err != nil {
		fmt.Fprintf(errs, "fsck: %s while trying to open %s\n", message(err), dev)
		return 8
	}
	token, err := probe(d)
	if err != nil {
		fmt.Fprintf(errs, "fsck: %s while trying to open %s\n", message(err), dev)
		return 8
	}
	if token == "TYPE=xfs" {
		return 0
	}
	if h.heldByMap(d) {
		fmt.Fprintf(errs, "%s is in use.\ne2fsck: Cannot continue, aborting.\n", dev)
		return 8
	}
	if v, _ := h.mountOf(d); v != nil {
		fmt.Fprintf(errs, "%s is mounted.\ne2fsck: Cannot continue, aborting.\n", dev)
		return 8
	}
	v, err := load(d)
	switch {
	case errors.Is(err, errNoFilesystem):
		fmt.Fprintf(errs, "fsck.ext2: Bad magic number in super-block while trying to open %s\n", dev)
		return 8
	case errors.Is(err, errUnclean):
		fmt.Fprintf(errs, "%s: UNEXPECTED INCONSISTENCY; RUN fsck MANUALLY.\n\t(i.e., without -a or -p options)\n", dev)
		return 4
	case err != nil:
		fmt.Fprintf(errs, "fsck: %s while reading %s\n", message(err), dev)
		return 8
	}
	if _, forced := flags["-f"]; forced {
		v.head.Checked, v.changed = true, true
		if err := v.commit(); err != nil {
			fmt.Fprintf(errs, "fsck: %s while writing %s\n", message(err), dev)
			return 8
		}
	}
	fmt.Fprintf(out, "%s: clean, %d/%d files, %d/%d blocks\n", dev, v.sb.count, v.inodes, v.head.Blocks-v.usable+v.live, v.head.Blocks)
	return 0
}

// ext opens the ext3 or ext4 filesystem of a device for a tool.
func ext(h *Memory, errs io.Writer, tool, dev string) (*device, *volume, *mounted) {
	d, err := h.device(dev)
	if err != nil {
		fmt.Fprintf(errs, "%s: %s while trying to open %s\n", tool, message(err), dev)
		return nil, nil, nil
	}
	if v, m := h.mountOf(d); v != nil && v.head.Type != "xfs" {
		return d, v, m
	}
	v, err := load(d)
	if err == nil && v.head.Type == "xfs" {
		err = errNoFilesystem
	}
	if err != nil {
		text := message(err)
		if errors.Is(err, errNoFilesystem) {
			text = "Bad magic number in super-block"
		}
		fmt.Fprintf(errs, "%s: %s while trying to open %s\nCouldn't find valid filesystem superblock.\n", tool, text, dev)
		return nil, nil, nil
	}
	return d, v, nil
}

func cmdDumpe2fs(h *Memory, out, errs io.Writer, args []string) int {
	ops, _ := operands(args, "o")
	_, v, _ := ext(h, errs, "dumpe2fs", last(ops))
	if v == nil {
		return 1
	}
	fmt.Fprintln(errs, "dumpe2fs 1.47.0 (5-Feb-2023)")
	u := v.usage()
	fmt.Fprintf(out, `Filesystem volume name:   <none>
Filesystem UUID:          %s
Filesystem magic number:  0xEF53
Filesystem state:         clean
Inode count:              %d
Block count:              %d
Reserved block count:     0
Free blocks:              %d
Free inodes:              %d
Block size:               %d
`, v.head.UUID, v.inodes, v.head.Blocks, u.FreeBytes/blockSize, u.FreeInodes, blockSize)
	return 0
}

func cmdTune2fs(h *Memory, out, errs io.Writer, args []string) int {
	ops, flags := operands(args, "ULmciergueEoO")
	_, v, m := ext(h, errs, "tune2fs", last(ops))
	if v == nil {
		return 1
	}
	if _, list := flags["-l"]; list {
		return cmdDumpe2fs(h, out, errs, ops)
	}
	if uuid := flags["-U"]; uuid != "" {
		if m != nil && m.sb.ro {
			fmt.Fprintln(errs, "tune2fs: Read-only file system")
			return 1
		}
		return h.setUUID(errs, "tune2fs", v, uuid)
	}
	return 0
}

func (h *Memory) setUUID(errs io.Writer, tool string, v *volume, uuid string) int {
	if uuid == "random" || uuid == "generate" {
		h.made[v.dev.wwn]++
		uuid = UUIDOf(fmt.Sprintf("%d|host|%s|uuid|%s|%d", h.cfg.Seed, h.cfg.Name, v.dev.wwn, h.made[v.dev.wwn]))
	}
	v.head.UUID, v.changed = uuid, true
	if err := v.commit(); err != nil {
		fmt.Fprintf(errs, "%s: %s while writing the superblock\n", tool, message(err))
		return 1
	}
	return 0
}

func cmdResize2fs(h *Memory, out, errs io.Writer, args []string) int {
	ops, flags := operands(args, "dSz")
	if len(ops) != 1 {
		fmt.Fprintln(errs, "resize2fs: memory hosts grow to the size of the device only")
		return 1
	}
	dev := ops[0]
	d, v, m := ext(h, errs, "resize2fs", dev)
	if v == nil {
		return 1
	}
	blocks := d.size / blockSize
	if blocks == v.head.Blocks {
		fmt.Fprintf(errs, "The filesystem is already %d (4k) blocks long.  Nothing to do!\n", blocks)
		return 0
	}
	_, force := flags["-f"]
	switch {
	case m != nil && m.sb.ro:
		fmt.Fprintln(errs, "resize2fs: Read-only file system While trying to extend the filesystem")
		return 1
	case m == nil && !v.head.Checked && !force:
		// resize2fs refuses offline work on what was mounted since its last
		// full check.
		fmt.Fprintf(errs, "Please run 'e2fsck -f %s' first.\n\n", dev)
		return 1
	}
	if m != nil {
		fmt.Fprintf(out, "Filesystem at %s is mounted on %s; on-line resizing required\n", dev, h.ns.where(m))
	}
	if _, err := v.grow(); err != nil {
		fmt.Fprintf(errs, "resize2fs: %s While trying to extend the filesystem\n", message(err))
		return 1
	}
	fmt.Fprintf(out, "The filesystem on %s is now %d (4k) blocks long.\n", dev, v.head.Blocks)
	return 0
}

// mountedXFS finds the filesystem for tools that want a mount point.
func mountedXFS(h *Memory, p string) *volume {
	at, err := h.ns.walk(p, true)
	if err != nil {
		return nil
	}
	if at.n.mode&fs.ModeDevice != 0 {
		if d, err := h.open(at.n); err == nil {
			if v, _ := h.mountOf(d); v != nil && v.head.Type == "xfs" {
				return v
			}
		}
		return nil
	}
	if v := at.n.sb.vol; v != nil && v.head.Type == "xfs" && at.n == at.m.root {
		return v
	}
	return nil
}

func cmdXfsGrowfs(h *Memory, out, errs io.Writer, args []string) int {
	ops, _ := operands(args, "DeLmRt")
	v := mountedXFS(h, last(ops))
	if v == nil {
		fmt.Fprintf(errs, "xfs_growfs: %s is not a mounted XFS filesystem\n", last(ops))
		return 1
	}
	if v.sb.ro {
		fmt.Fprintln(errs, "xfs_growfs: XFS_IOC_FSGROWFSDATA xfsctl failed: Read-only file system")
		return 1
	}
	old := v.head.Blocks
	fmt.Fprintf(out, "meta-data=%s\ndata     =                       bsize=%d   blocks=%d, imaxpct=25\n", v.dev.path(), blockSize, old)
	grew, err := v.grow()
	switch {
	case err != nil:
		fmt.Fprintf(errs, "xfs_growfs: XFS_IOC_FSGROWFSDATA xfsctl failed: %s\n", message(err))
		return 1
	case grew:
		fmt.Fprintf(out, "data blocks changed from %d to %d\n", old, v.head.Blocks)
	default:
		fmt.Fprintln(out, "data size unchanged, skipping")
	}
	return 0
}

func cmdXfsIO(h *Memory, out, errs io.Writer, args []string) int {
	ops, flags := operands(args, "cpF")
	v := mountedXFS(h, last(ops))
	if flags["-c"] != "statfs" {
		fmt.Fprintf(errs, "command %q not found\n", flags["-c"])
		return 1
	}
	if v == nil {
		fmt.Fprintf(errs, "xfs_io: specified file [%q] is not on an XFS filesystem\n", last(ops))
		return 1
	}
	u := v.usage()
	fmt.Fprintf(out, "fd.path = %q\nstatfs.f_bsize = %d\nstatfs.f_blocks = %d\nstatfs.f_bavail = %d\nstatfs.f_files = %d\nstatfs.f_ffree = %d\ngeom.bsize = %d\ngeom.datablocks = %d\n",
		last(ops), blockSize, u.TotalBytes/blockSize, u.AvailableBytes/blockSize, u.TotalInodes, u.FreeInodes, blockSize, v.head.Blocks)
	return 0
}

// xfs opens an xfs that is not mounted.
func xfs(h *Memory, errs io.Writer, tool, dev string) *volume {
	d, err := h.device(dev)
	if err != nil {
		fmt.Fprintf(errs, "%s: cannot open %s: %s\n", tool, dev, message(err))
		return nil
	}
	if v, _ := h.mountOf(d); v != nil {
		fmt.Fprintf(errs, "%s: %s contains a mounted filesystem\n", tool, dev)
		return nil
	}
	v, err := load(d)
	if err == nil && v.head.Type != "xfs" {
		err = errNoFilesystem
	}
	if err != nil {
		fmt.Fprintf(errs, "%s: %s is not a valid XFS filesystem: %s\n", tool, dev, message(err))
		return nil
	}
	return v
}

func cmdXfsAdmin(h *Memory, out, errs io.Writer, args []string) int {
	ops, flags := operands(args, "ULOrc")
	v := xfs(h, errs, "xfs_admin", last(ops))
	if v == nil {
		return 1
	}
	if uuid := flags["-U"]; uuid != "" {
		if s := h.setUUID(errs, "xfs_admin", v, uuid); s != 0 {
			return s
		}
	}
	fmt.Fprintf(out, "UUID = %s\n", v.head.UUID)
	return 0
}

// cmdXfsRepair finds damage but repairs none. Exit status as of xfs_repair(8).
func cmdXfsRepair(h *Memory, _, errs io.Writer, args []string) int {
	ops, _ := operands(args, "oltcmrv")
	if xfs(h, errs, "xfs_repair", last(ops)) == nil {
		return 1
	}
	return 0
}
