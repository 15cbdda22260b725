package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	osexec "os/exec"
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
		return errors.New("host: a real node loses no data at power off: its kernel lives on")
	default:
		return fmt.Errorf("host: real hosts do not know %q (known: ext3, ext4, xfs, grow-online:<fs>, block)", feature)
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
	growMu.Lock()
	defer growMu.Unlock()
	err, tried := grows[fstype]
	if !tried {
		err = tryGrow(fstype)
		grows[fstype] = err
	}
	return err
}

var (
	growMu sync.Mutex
	grows  = map[string]error{}
)

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
func tryGrow(fstype string) (err error) {
	dir, err := os.MkdirTemp("", "csilab-grow")
	if err != nil {
		return fmt.Errorf("host: %w", err)
	}
	defer os.RemoveAll(dir)
	size, mkfs, grow := int64(8<<20), []string{"mkfs." + fstype, "-q", "-F"}, []string{"resize2fs"}
	if fstype == "xfs" {
		size, mkfs, grow = xfsMinimum+(16<<20), []string{"mkfs.xfs", "-q", "-f"}, []string{"xfs_growfs", "-d"}
	}
	img, mnt, node := filepath.Join(dir, "img"), filepath.Join(dir, "mnt"), filepath.Join(dir, "disk")
	err = errors.Join(os.WriteFile(img, nil, 0o600), os.Truncate(img, size), os.Mkdir(mnt, 0o700))
	if err != nil {
		return fmt.Errorf("host: %w", err)
	}
	l, err := attachLoop(img, dir)
	if err != nil {
		return err
	}
	defer l.close()
	if err := unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(loopMajor, l.minor))); err != nil {
		return fmt.Errorf("host: %w", err)
	}
	t, err := newThreads(func() error { return nil })
	if err != nil {
		return err
	}
	defer t.close()
	run := func(args ...string) error {
		path, err := findTool(args[0])
		if err != nil {
			return err
		}
		c := osexec.CommandContext(context.Background(), path, args[1:]...)
		var out []byte
		if derr := t.do(func() { out, err = c.CombinedOutput() }); derr != nil {
			return derr
		}
		if err != nil {
			return fmt.Errorf("%s: %w: %s", args[0], err, strings.TrimSpace(string(out)))
		}
		return nil
	}
	if err := run(append(mkfs, node)...); err != nil {
		return fmt.Errorf("host: %w", err)
	}
	if err := run("mount", "-t", fstype, node, mnt); err != nil {
		return fmt.Errorf("host: %w", err)
	}
	defer func() { err = errors.Join(err, run("umount", mnt)) }()
	if err := errors.Join(os.Truncate(img, 2*size), l.resize()); err != nil {
		return fmt.Errorf("host: %w", err)
	}
	at := node
	if fstype == "xfs" {
		at = mnt
	}
	if err := run(append(grow, at)...); err != nil {
		return fmt.Errorf("host: this kernel doesn't grow a mounted %s: %w", fstype, err)
	}
	return nil
}
