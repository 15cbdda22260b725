package host

import (
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Supports implements Host. Whether the kernel lets root grow a mounted
// filesystem is tried out once in the life of this process.
func (h *Real) Supports(feature string) error {
	fstype := strings.TrimPrefix(feature, "grow-online:")
	switch fstype {
	case "ext3", "ext4", "xfs":
	case "block":
		return nil
	case "power-loss":
		return h.once(feature, tryShutdown)
	case "nfs":
		return fmt.Errorf("host: real nodes mount by the kernel's NFS client, and the lab has no NFS server for it; memory nodes have")
	default:
		return fmt.Errorf("host: real hosts do not know %q (known: ext3, ext4, xfs, grow-online:<fs>, block, power-loss, nfs)", feature)
	}
	tools := []string{"mkfs." + fstype}
	if fstype == "xfs" {
		tools = append(tools, "xfs_growfs")
	}
	for _, tool := range tools {
		if _, err := findTool(tool); err != nil {
			return fmt.Errorf("host: this machine has no %s (package %s)", tool, map[bool]string{true: "xfsprogs", false: "e2fsprogs"}[fstype == "xfs"])
		}
	}
	if err := knowsFilesystem(fstype); err != nil {
		return err
	}
	if fstype == feature {
		return nil
	}
	return h.once(feature, func(dir string) error { return tryGrow(dir, fstype) })
}

var (
	triedMu sync.Mutex
	tried   = map[string]error{} // by feature
)

// once tries a feature once in the life of this process, in the node's state
// directory, so that what a killed process left there is swept with the lab.
func (h *Real) once(feature string, try func(dir string) error) error {
	triedMu.Lock()
	defer triedMu.Unlock()
	err, ok := tried[feature]
	if !ok {
		err = try(h.cfg.Dir)
		tried[feature] = err
	}
	return err
}

// knowsFilesystem says whether the kernel has a filesystem. One in a module
// that isn't loaded is found by mount(8) itself.
func knowsFilesystem(fstype string) error {
	b, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return fmt.Errorf("host: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if strings.TrimSpace(line) == fstype {
			return nil
		}
	}
	if _, err := os.Stat("/lib/modules"); err == nil {
		return nil
	}
	return fmt.Errorf("host: this kernel has no %s", fstype)
}

// tryGrow grows a small mounted filesystem.
func tryGrow(dir, fstype string) error {
	return scratch(dir, fstype, func(x scratchDisk) error {
		if err := errors.Join(os.Truncate(x.img, 2*x.size), x.loop.resize()); err != nil {
			return err
		}
		grow := []string{"resize2fs", x.node}
		if fstype == "xfs" {
			grow = []string{"xfs_growfs", "-d", x.mnt}
		}
		if err := x.run(grow...); err != nil {
			return fmt.Errorf("this kernel doesn't grow a mounted %s: %w", fstype, err)
		}
		return nil
	})
}

// tryShutdown tries whether a filesystem can be made to lose what isn't synced.
func tryShutdown(dir string) error {
	return scratch(dir, "ext4", func(x scratchDisk) error {
		var err error
		if derr := x.t.do(func() { err = shutdown(x.mnt) }); derr != nil {
			return derr
		}
		if err != nil {
			return fmt.Errorf("this kernel doesn't shut a mounted filesystem down: %w", err)
		}
		return nil
	})
}

// scratchDisk is a small mounted filesystem to try things with.
type scratchDisk struct {
	t              *threads
	loop           *loop
	img, node, mnt string
	size           int64
}

// run runs a command where the filesystem is mounted.
func (x scratchDisk) run(args ...string) error {
	path, err := findTool(args[0])
	if err != nil {
		return err
	}
	var out []byte
	if derr := x.t.do(func() { out, err = osexec.Command(path, args[1:]...).CombinedOutput() }); derr != nil {
		return derr
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", args[0], err, strings.TrimSpace(string(out)))
	}
	return nil
}

// scratch makes a filesystem, mounts it in a namespace of its own, and takes
// it away again.
func scratch(parent, fstype string, try func(scratchDisk) error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("host: %w", err)
		}
	}()
	dir, err := os.MkdirTemp(parent, "try")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	x := scratchDisk{size: 8 << 20, img: filepath.Join(dir, "img"), node: filepath.Join(dir, "disk"), mnt: filepath.Join(dir, "mnt")}
	mkfs := []string{"mkfs." + fstype, "-q", "-F", x.node}
	if fstype == "xfs" {
		x.size, mkfs = xfsMinimum+(16<<20), []string{"mkfs.xfs", "-q", "-f", x.node}
	}
	if err := errors.Join(os.WriteFile(x.img, nil, 0o600), os.Truncate(x.img, x.size), os.Mkdir(x.mnt, 0o700)); err != nil {
		return err
	}
	if x.loop, err = attachLoop(x.img, dir); err != nil {
		return err
	}
	defer x.loop.close()
	if err := unix.Mknod(x.node, unix.S_IFBLK|0o600, int(unix.Mkdev(loopMajor, x.loop.minor))); err != nil {
		return err
	}
	if x.t, err = newThreads("csilab", func() error { return nil }); err != nil {
		return err
	}
	defer x.t.close()
	if err := x.run(mkfs...); err != nil {
		return err
	}
	if err := x.run("mount", "-t", fstype, x.node, x.mnt); err != nil {
		return err
	}
	return errors.Join(try(x), x.run("umount", x.mnt))
}
