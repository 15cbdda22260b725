package host

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/mount-utils"
)

// Numbers of the shutdown ioctl, which ext4 and xfs share (EXT4_IOC_SHUTDOWN
// in fs/ext4/ext4.h, XFS_IOC_GOINGDOWN in fs/xfs/libxfs/xfs_fs.h).
const (
	iocShutdown       = 0x8004587d
	shutdownWithoutIO = 2 // neither data nor log is written
)

// shutdown makes a mounted filesystem fail from now on and drop what isn't on
// the disk yet, as when its disk is pulled or the power fails. It runs in the
// node's namespace.
func shutdown(mountPoint string) error {
	f, err := os.Open(mountPoint)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.IoctlSetPointerInt(int(f.Fd()), iocShutdown, shutdownWithoutIO); err != nil {
		return fmt.Errorf("shut down %s: %w", mountPoint, err)
	}
	return nil
}

// shutdownMounted shuts down the filesystems of a device, or of all the node's
// disks for "". It runs in the node's namespace.
func shutdownMounted(device string) error {
	mounts, err := mount.ListProcMounts("/proc/thread-self/mounts")
	if err != nil {
		return err
	}
	var errs []error
	seen := map[string]bool{}
	for _, m := range mounts {
		if seen[m.Device] || !strings.HasPrefix(m.Device, "/dev/sd") || device != "" && m.Device != device {
			continue
		}
		seen[m.Device] = true
		// One that is shut down already can't be opened any more.
		if err := shutdown(m.Path); err != nil && !errors.Is(err, unix.EIO) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
