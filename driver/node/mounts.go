package node

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"

	"k8s.io/mount-utils"
)

// resolve follows the links of all but the last element, as the mount table
// shows paths. The last one isn't followed: looking at the root of a dead mount
// fails.
func (s *Service) resolve(p string) (string, error) {
	p = path.Clean(p)
	if p == "/" {
		return p, nil
	}
	dir, err := s.host.EvalSymlinks(path.Dir(p))
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return "", err
	}
	return path.Join(dir, path.Base(p)), nil
}

// mountsAt are the mounts at a resolved path; the last one is on top.
func (s *Service) mountsAt(p string) ([]mount.MountPoint, error) {
	all, err := s.host.Mounter().List()
	if err != nil {
		return nil, fmt.Errorf("mount table: %w", err)
	}
	var at []mount.MountPoint
	for _, m := range all {
		// proc_pid_mounts(5): space, tab, newline and backslash are octal.
		if unescape.Replace(m.Path) == p {
			at = append(at, m)
		}
	}
	return at, nil
}

var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// refs are the other places where what is at a path (a mount, or a device node
// that is bound onto files) is mounted.
func (s *Service) refs(p string) ([]string, error) {
	all, err := s.host.Mounter().GetMountRefs(p)
	if err != nil {
		return nil, fmt.Errorf("places where %s is mounted: %w", p, err)
	}
	var out []string
	for _, r := range all {
		if r = unescape.Replace(r); r != p && !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	slices.Sort(out)
	return out, nil
}

// sameDevice says whether two names are of one device node.
func (s *Service) sameDevice(a, b string) bool {
	return a == b || s.device(a) == s.device(b)
}

func (s *Service) device(name string) string {
	if !strings.HasPrefix(name, "/") {
		return name
	}
	if r, err := s.host.EvalSymlinks(name); err == nil {
		return r
	}
	return name
}

// alive reports what is wrong with the filesystem that is mounted at a path
// from a device: a device that went away, or a filesystem that answers with
// errors. An error of ours (such as one that the path gives for other reasons)
// is not "dead".
func (s *Service) alive(p, device string) error {
	if strings.HasPrefix(device, "/") {
		fi, err := s.host.Stat(device)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("its device %s is gone", device)
		case err == nil && !isBlock(fi):
			return fmt.Errorf("its device %s is gone", device)
		}
	}
	if _, err := s.host.Stat(p); broken(err) {
		return err
	}
	return nil
}

// unmountAll takes everything off a resolved path. What is dead and can't be
// unmounted is detached lazily. It returns whether anything was mounted.
func (s *Service) unmountAll(p string) (bool, error) {
	// Each round takes one mount off; a stack deeper than this is not ours.
	const deepest = 16
	for n := range deepest {
		at, err := s.mountsAt(p)
		if err != nil {
			return n > 0, err
		}
		if len(at) == 0 {
			return n > 0, nil
		}
		top := at[len(at)-1]
		if isShare(top) {
			if err := s.unmountShare(p, top); err != nil {
				return n > 0, err
			}
			continue
		}
		dead := s.alive(p, top.Device)
		err = s.host.Mounter().Unmount(p)
		if err != nil && dead != nil {
			s.log.Warn("detaching a dead mount lazily", "path", p, "device", top.Device, "dead", dead, "err", err)
			_, err = s.run("umount", "-l", p)
		}
		if err != nil {
			return n > 0, err
		}
	}
	return true, fmt.Errorf("more than %d mounts on %s", deepest, p)
}

// broken says whether an error of looking at a path means that what is mounted
// there is dead. The list is that of kubelet (k8s.io/mount-utils v0.37.2,
// IsCorruptedMnt) without EACCES and EWOULDBLOCK, which are for network
// filesystems, and with ENODEV, ENXIO and ESHUTDOWN, which a device that was
// pulled gives.
func broken(err error) bool {
	for _, e := range []syscall.Errno{syscall.EIO, syscall.ENOTCONN, syscall.ESTALE, syscall.EHOSTDOWN, syscall.ENODEV, syscall.ENXIO, syscall.ESHUTDOWN} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// isBlock says whether a file is a block device.
func isBlock(fi fs.FileInfo) bool {
	return fi.Mode()&fs.ModeDevice != 0 && fi.Mode()&fs.ModeCharDevice == 0
}
