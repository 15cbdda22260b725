package host

import (
	"strings"

	"k8s.io/mount-utils"
)

// guardedMounter is a mounter behind a guard.
type guardedMounter struct {
	m mount.Interface
	g guard
}

// mountOperation leaves the sensitive options out.
func mountOperation(source, target, fstype string, options []string) operation {
	words := []string{"source=" + source}
	if fstype != "" {
		words = append(words, "fstype="+fstype)
	}
	if len(options) > 0 {
		words = append(words, "options="+strings.Join(options, ","))
	}
	return operation{name: "Mount", path: target, request: strings.Join(words, " ")}
}

func (x guardedMounter) Mount(source, target, fstype string, options []string) error {
	return x.g.do(mountOperation(source, target, fstype, options), func() error {
		return x.m.Mount(source, target, fstype, options)
	})
}

func (x guardedMounter) MountSensitive(source, target, fstype string, options, sensitive []string) error {
	return x.g.do(mountOperation(source, target, fstype, options), func() error {
		return x.m.MountSensitive(source, target, fstype, options, sensitive)
	})
}

func (x guardedMounter) MountSensitiveWithoutSystemd(source, target, fstype string, options, sensitive []string) error {
	return x.g.do(mountOperation(source, target, fstype, options), func() error {
		return x.m.MountSensitiveWithoutSystemd(source, target, fstype, options, sensitive)
	})
}

func (x guardedMounter) MountSensitiveWithoutSystemdWithMountFlags(source, target, fstype string, options, sensitive, flags []string) error {
	return x.g.do(mountOperation(source, target, fstype, options), func() error {
		return x.m.MountSensitiveWithoutSystemdWithMountFlags(source, target, fstype, options, sensitive, flags)
	})
}

func (x guardedMounter) Unmount(target string) error {
	return x.g.do(operation{name: "Unmount", path: target}, func() error { return x.m.Unmount(target) })
}

func (x guardedMounter) List() ([]mount.MountPoint, error) {
	return value(x.g, read("List", "/proc/mounts"), x.m.List)
}

func (x guardedMounter) IsLikelyNotMountPoint(file string) (bool, error) {
	not, err := value(x.g, read("IsLikelyNotMountPoint", file), func() (bool, error) { return x.m.IsLikelyNotMountPoint(file) })
	return not || err != nil, err
}

func (x guardedMounter) CanSafelySkipMountPointCheck() bool {
	return x.m.CanSafelySkipMountPointCheck()
}

func (x guardedMounter) IsMountPoint(file string) (bool, error) {
	return value(x.g, read("IsMountPoint", file), func() (bool, error) { return x.m.IsMountPoint(file) })
}

func (x guardedMounter) GetMountRefs(pathname string) ([]string, error) {
	return value(x.g, read("GetMountRefs", pathname), func() ([]string, error) { return x.m.GetMountRefs(pathname) })
}
