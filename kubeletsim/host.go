package kubeletsim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"k8s.io/mount-utils"
)

// Host is what a kubelet needs of its node's operating system; a
// sim/host.Host has it. Paths are the node's own.
type Host interface {
	Stat(path string) (fs.FileInfo, error)
	Lstat(path string) (fs.FileInfo, error)
	ReadDir(path string) ([]fs.DirEntry, error)
	ReadFile(path string) ([]byte, error)
	WriteFile(path string, data []byte, perm fs.FileMode) error
	MkdirAll(path string, perm fs.FileMode) error
	Remove(path string) error
	Symlink(target, path string) error
	Readlink(path string) (string, error)
	EvalSymlinks(path string) (string, error)
	Chmod(path string, mode fs.FileMode) error
	Lchown(path string, uid, gid int) error
	Owner(path string) (uid, gid int, err error)
	ReadAt(path string, offset int64, n int) ([]byte, error)
	WriteAt(path string, offset int64, data []byte, sync bool) error
	Mounter() mount.Interface
}

func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// remove removes a file or an empty directory that may be missing.
func (k *Kubelet) remove(p string) error {
	if err := k.cfg.Host.Remove(p); err != nil && !missing(err) {
		return err
	}
	return nil
}

// isMounted is kubelet's isDirMounted (pkg/volume/csi/csi_mounter.go): a
// missing path is not mounted.
func (k *Kubelet) isMounted(p string) (bool, error) {
	not, err := k.cfg.Host.Mounter().IsLikelyNotMountPoint(p)
	if err != nil {
		if missing(err) {
			return false, nil
		}
		return false, err
	}
	return !not, nil
}

// removeMountDir removes a mount point that is no longer mounted, the data
// file beside it and the directory of both (csi_mounter.go, removeMountDir).
// While it is mounted nothing happens and there is no error.
func (k *Kubelet) removeMountDir(p string) error {
	m, err := k.isMounted(p)
	if err != nil || m {
		return err
	}
	dir := path.Dir(p)
	if err := k.remove(p); err != nil {
		return csiErrorf("failed to remove dir [%s]: %v", p, err)
	}
	if err := k.remove(path.Join(dir, dataFile)); err != nil {
		return csiErrorf("failed to delete volume data file [%s]: %v", path.Join(dir, dataFile), err)
	}
	if err := k.remove(dir); err != nil {
		return csiErrorf("failed to delete volume path [%s]: %v", dir, err)
	}
	return nil
}

// removeTree removes a directory with all in it but what is a mount point
// (pkg/util/removeall/removeall.go, RemoveAllOneFilesystem). With dirsOnly a file
// is refused too. What fails does not keep the rest, and counts only if the
// directory can't be removed in the end; the error is the first one. So does
// os.RemoveAll, which kubelet calls for block volumes.
func (k *Kubelet) removeTree(p string, dirsOnly bool) error {
	h := k.cfg.Host
	fi, err := h.Lstat(p)
	if err != nil {
		if missing(err) {
			return nil
		}
		return err
	}
	if m, err := k.isMounted(p); err != nil {
		return err
	} else if m {
		return fmt.Errorf("%s: not removed, it is a mount point", p)
	}
	if !fi.IsDir() {
		if dirsOnly {
			return fmt.Errorf("%s: not removed, it is a file", p)
		}
		return k.remove(p)
	}
	entries, err := h.ReadDir(p)
	if err != nil && !missing(err) {
		return err
	}
	var first error
	for _, e := range entries {
		if err := k.removeTree(path.Join(p, e.Name()), dirsOnly); first == nil {
			first = err
		}
	}
	if err := k.remove(p); err != nil {
		if first == nil {
			first = err
		}
		return first
	}
	return nil
}

// volumeData is a vol_data.json, with kubelet's keys (pkg/volume/csi/csi_mounter.go:45).
type volumeData map[string]string

const (
	keySpecVolID  = "specVolID"
	keyHandle     = "volumeHandle"
	keyDriver     = "driverName"
	keyNode       = "nodeName"
	keyAttachment = "attachmentID"
	keyLifecycle  = "volumeLifecycleMode"
)

func (k *Kubelet) saveData(dir string, d volumeData) error {
	b, err := json.Marshal(d)
	if err == nil {
		err = k.cfg.Host.WriteFile(path.Join(dir, dataFile), append(b, '\n'), 0o644)
	}
	if err != nil {
		return csiErrorf("failed to save volume data file %s: %v", path.Join(dir, dataFile), err)
	}
	return nil
}

func (k *Kubelet) loadData(dir string) (volumeData, error) {
	file := path.Join(dir, dataFile)
	b, err := k.cfg.Host.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", csiMsg("failed to open volume data file [%s]", file), err)
	}
	return parseVolumeData(file, b)
}

// parseVolumeData reads a data file: one JSON object of strings.
func parseVolumeData(file string, b []byte) (volumeData, error) {
	d := volumeData{}
	dec := json.NewDecoder(strings.NewReader(string(b)))
	if err := dec.Decode(&d); err != nil {
		return nil, csiErrorf("failed to parse volume data file [%s]: %v", file, err)
	}
	return d, nil
}
