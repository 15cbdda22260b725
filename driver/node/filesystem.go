package node

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"k8s.io/utils/exec"
)

// ErrNotBlank: nothing known is on the device, but it isn't blank either.
var ErrNotBlank = errors.New("node: device is neither blank nor of a known format")

// run runs a command of the node. The output is in the error.
func (s *Service) run(name string, args ...string) ([]byte, error) {
	out, err := s.host.Exec().Command(name, args...).CombinedOutput()
	if err != nil {
		return out, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return out, nil
}

func exitStatus(err error) (int, bool) {
	var e exec.ExitError
	if errors.As(err, &e) && e.Exited() {
		return e.ExitStatus(), true
	}
	return 0, false
}

// blankProbe is how much of a device is read, and must be zeros, before it is
// formatted.
const blankProbe = 1 << 20

// format is what a device holds: a filesystem type, "" for a blank device.
//
// blkid(8) exits with 2 both for "nothing found" and for "could not read", and
// taking the second for the first has destroyed data (kubernetes#142243,
// hetznercloud/csi-driver#1346). So a device counts as blank only when its
// first MiB was read and is zeros. The price is that a mkfs of ext3 or ext4
// that was killed within its last writes (all metadata but the primary
// superblock) leaves a device that is refused with ErrNotBlank: it is made anew
// on the node that began it (see intents), and must be wiped by hand elsewhere.
// One of xfs is recognised: it says so in its superblock until it ends.
func (s *Service) format(device string) (string, error) {
	out, err := s.run("blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device)
	if err != nil {
		if code, ok := exitStatus(err); !ok || code != 2 {
			return "", err
		}
		return "", s.blank(device)
	}
	var kind, table string
	for line := range strings.Lines(string(out)) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch k {
		case "TYPE":
			kind = v
		case "PTTYPE":
			table = v
		}
	}
	switch {
	case table != "":
		return "", fmt.Errorf("%w: %s has a partition table (%s)", ErrNotBlank, device, table)
	case kind == "":
		return "", fmt.Errorf("%w: blkid of %s says neither TYPE nor PTTYPE", ErrNotBlank, device)
	case kind == "xfs":
		unfinished, err := s.xfsInProgress(device)
		if err != nil {
			return "", err
		}
		if unfinished {
			s.log.Warn("a mkfs.xfs was interrupted and is repeated", "device", device)
			return "", nil
		}
	}
	return kind, nil
}

func (s *Service) blank(device string) error {
	size, err := s.host.DeviceSize(device)
	if err != nil {
		return fmt.Errorf("size of %s: %w", device, err)
	}
	if size <= 0 {
		return fmt.Errorf("size of %s is %d", device, size)
	}
	n := int(min(size, blankProbe))
	data, err := s.host.ReadAt(device, 0, n)
	if err != nil {
		return fmt.Errorf("read of %s: %w", device, err)
	}
	if len(data) < n {
		return fmt.Errorf("read of %s: got %d of %d bytes", device, len(data), n)
	}
	for i, b := range data {
		if b != 0 {
			return leftover{device, i}
		}
	}
	return nil
}

// xfsInProgress reads sb_inprogress, which mkfs.xfs sets first and clears last
// (xfs_format.h, struct xfs_dsb, offset 126); the kernel refuses to mount such
// a filesystem, so no pod has written to it.
func (s *Service) xfsInProgress(device string) (bool, error) {
	sb, err := s.host.ReadAt(device, 0, 512)
	if err != nil {
		return false, fmt.Errorf("read of %s: %w", device, err)
	}
	return len(sb) == 512 && binary.BigEndian.Uint32(sb) == 0x58465342 && sb[126] == 1, nil
}

// makeFS formats a device with kubelet's flags (k8s.io/mount-utils v0.37.2,
// mount_linux.go, formatAndMountSensitive): forced, nothing reserved for root.
// create are further arguments.
func (s *Service) makeFS(device, kind string, create []string) error {
	args := []string{"-F", "-m0"}
	if kind == "xfs" {
		args = []string{"-f"}
	}
	args = append(append(args, create...), device)
	_, err := s.run("mkfs."+kind, args...)
	return err
}

// check repairs what can be repaired without asking. Exit status 1: corrected;
// 4: errors left; others (8 and more) say that the check itself did not run,
// and then mount decides, as for kubelet (mount-utils, checkAndRepairFilesystem).
// With repair, errors that are left are repaired too, whatever that costs.
func (s *Service) check(device, kind string, repair bool) error {
	_, err := s.run("fsck", "-a", device)
	if err == nil {
		return nil
	}
	if code, ok := exitStatus(err); ok && code&4 != 0 {
		if repair && kind != "xfs" {
			s.log.Warn("a filesystem has errors and is repaired", "device", device, "err", err)
			_, err := s.run("e2fsck", "-f", "-y", device)
			// 1: corrected; 2: corrected, reboot if it is mounted, which it isn't.
			if code, ok := exitStatus(err); err == nil || ok && code&^3 == 0 {
				return nil
			}
			return fmt.Errorf("repair of a filesystem with errors: %w", err)
		}
		return fmt.Errorf("filesystem has errors that need a repair by hand: %w", err)
	}
	s.log.Warn("fsck", "device", device, "err", err)
	return nil
}

// grow enlarges a mounted filesystem to its device. The tools do nothing when
// there is nothing to do, and never shrink without a size.
func (s *Service) grow(device, mounted, kind string) error {
	switch kind {
	case "ext3", "ext4":
		_, err := s.run("resize2fs", device)
		return err
	case "xfs":
		_, err := s.run("xfs_growfs", "-d", mounted)
		return err
	}
	return fmt.Errorf("a filesystem of type %q can't be grown, only %s", kind, strings.Join(filesystems, ", "))
}

// growUnmounted enlarges an ext3 or ext4 that isn't mounted; resize2fs wants a
// full check before. Exit status 1 of e2fsck: corrected.
func (s *Service) growUnmounted(device string) error {
	if _, err := s.run("e2fsck", "-f", "-p", device); err != nil {
		if code, ok := exitStatus(err); !ok || code != 1 {
			return err
		}
	}
	_, err := s.run("resize2fs", device)
	return err
}
