// Package guest is a vSphere virtual machine seen from inside: which VM it is,
// and which of its SCSI disks is the one that the controller attached.
package guest

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/csilab/csilab/driver/node"
)

// Keys of the publish context, as the controller side writes them.
const (
	KeyDiskUUID = "diskUUID"
)

const (
	byID   = "/dev/disk/by-id"
	prefix = "wwn-0x"
	dmi    = "/sys/class/dmi/id"
)

// Host is what is read and written of the operating system.
type Host interface {
	Stat(path string) (fs.FileInfo, error)
	ReadDir(path string) ([]fs.DirEntry, error)
	ReadFile(path string) ([]byte, error)
	WriteFile(path string, data []byte, perm fs.FileMode) error
	EvalSymlinks(path string) (string, error)
}

// Config of a guest.
type Config struct {
	Host Host // required
	// Watch signals changes of a directory; nil: only the timer looks again.
	Watch func(ctx context.Context, dir string) (<-chan struct{}, error)
	// Wait for a device to appear; 0: 30 s, below the two minutes that kubelet
	// gives a call (k8s v1.37, pkg/volume/csi/csi_plugin.go, csiTimeout).
	Wait time.Duration
	Log  *slog.Logger // nil discards
}

// Guest implements node.Backend.
type Guest struct {
	node.Unheld // the controller pulls the disk
	cfg         Config
}

var _ node.Backend = (*Guest)(nil)

// New returns a guest.
func New(cfg Config) (*Guest, error) {
	if cfg.Host == nil {
		return nil, errors.New("guest: Config.Host is nil")
	}
	if cfg.Wait < 0 {
		return nil, fmt.Errorf("guest: Config.Wait is %s, must not be negative", cfg.Wait)
	}
	if cfg.Wait == 0 {
		cfg.Wait = 30 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Guest{cfg: cfg}, nil
}

// NodeID is the VM's BIOS uuid in lower case. The serial number holds it in the
// order in which vCenter shows it. product_uuid is the fall-back: SMBIOS 2.6 and
// newer show its first three fields in the other byte order, so a VM of
// hardware version 13 or newer without a serial number of the known form would
// have an id that vCenter doesn't find.
func (g *Guest) NodeID(context.Context) (string, error) {
	serial, serr := g.cfg.Host.ReadFile(dmi + "/product_serial")
	if serr == nil {
		id, err := parseSerial(string(serial))
		if err == nil {
			return id, nil
		}
		serr = err
	}
	raw, err := g.cfg.Host.ReadFile(dmi + "/product_uuid")
	if err != nil {
		return "", errors.Join(serr, err)
	}
	id, err := formatUUID(strings.ReplaceAll(strings.TrimSpace(string(raw)), "-", ""))
	if err != nil {
		return "", errors.Join(serr, fmt.Errorf("%s/product_uuid is %q: %w", dmi, strings.TrimSpace(string(raw)), err))
	}
	g.cfg.Log.Warn("node id from product_uuid, whose byte order may differ from vCenter's", "id", id, "serial", serr)
	return id, nil
}

// parseSerial reads "VMware-42 0a 1f … 5b-c3 …": sixteen bytes in hex.
func parseSerial(s string) (string, error) {
	s = strings.TrimSpace(s)
	h, ok := strings.CutPrefix(s, "VMware-")
	if !ok {
		return "", fmt.Errorf("%s/product_serial is %q, must start with %q", dmi, s, "VMware-")
	}
	id, err := formatUUID(strings.NewReplacer(" ", "", "-", "").Replace(h))
	if err != nil {
		return "", fmt.Errorf("%s/product_serial is %q: %w", dmi, s, err)
	}
	return id, nil
}

func formatUUID(h string) (string, error) {
	h = strings.ToLower(h)
	if b, err := hex.DecodeString(h); err != nil || len(b) != 16 {
		return "", errors.New("must have 32 hex digits")
	}
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:], nil
}

// Traits implements node.Backend.
func (g *Guest) Traits() node.Traits { return node.Traits{} }

// Filesystem implements node.Backend: vSphere has nothing to say about it.
func (g *Guest) Filesystem(node.Volume) (node.Filesystem, error) {
	return node.Filesystem{Type: "ext4"}, nil
}

// Device implements node.Backend. The disk is found by its WWN only.
func (g *Guest) Device(ctx context.Context, v node.Volume, wait bool) (string, error) {
	publishContext := v.PublishContext
	uuid := strings.ToLower(strings.ReplaceAll(publishContext[KeyDiskUUID], "-", ""))
	if b, err := hex.DecodeString(uuid); err != nil || len(b) != 16 {
		return "", fmt.Errorf("%w: publish_context[%q] is %q, must be 32 hex digits", node.ErrContext, KeyDiskUUID, publishContext[KeyDiskUUID])
	}
	dev, err := g.find(uuid)
	if err == nil || !wait || !errors.Is(err, node.ErrNoDevice) {
		return dev, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, g.cfg.Wait, fmt.Errorf("waited %s: %w", g.cfg.Wait, err))
	defer cancel()
	var changed <-chan struct{}
	if g.cfg.Watch != nil {
		if changed, err = g.cfg.Watch(ctx, byID); err != nil {
			g.cfg.Log.Debug("directory of devices can't be watched", "dir", byID, "err", err)
		}
	}
	g.scan()
	// A bus has no event for a disk that it didn't notice, and a directory that
	// isn't there yet can't be watched: look again at growing intervals as well.
	for again := 50 * time.Millisecond; ; again = min(2*again, 2*time.Second) {
		dev, err := g.find(uuid)
		if err == nil || !errors.Is(err, node.ErrNoDevice) {
			return dev, err
		}
		t := time.NewTimer(again)
		select {
		case _, open := <-changed:
			if !open {
				changed = nil
			}
		case <-t.C:
			if again >= time.Second {
				g.scan()
			}
		case <-ctx.Done():
			t.Stop()
			return "", context.Cause(ctx)
		}
		t.Stop()
	}
}

// find resolves the link and checks that what it leads to is that disk: a link
// that was left behind leads to a device node whose name another disk got.
func (g *Guest) find(uuid string) (string, error) {
	link := path.Join(byID, prefix+uuid)
	dev, err := g.cfg.Host.EvalSymlinks(link)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("%w: %s: %w", node.ErrNoDevice, link, err)
		}
		return "", fmt.Errorf("%s: %w", link, err)
	}
	fi, err := g.cfg.Host.Stat(dev)
	if err != nil || fi.Mode()&fs.ModeDevice == 0 || fi.Mode()&fs.ModeCharDevice != 0 {
		return "", fmt.Errorf("%w: %s leads to %s, which isn't a block device", node.ErrNoDevice, link, dev)
	}
	// Where the kernel knows the disk's own identity, it decides.
	for _, f := range []string{"device/wwid", "wwid"} {
		w, err := g.cfg.Host.ReadFile(path.Join("/sys/block", path.Base(dev), f))
		if err != nil {
			continue
		}
		own, ok := strings.CutPrefix(strings.ToLower(strings.TrimSpace(string(w))), "naa.")
		switch {
		case ok && own != uuid:
			return "", fmt.Errorf("%w: %s leads to %s, whose wwid is naa.%s", node.ErrNoDevice, link, dev, own)
		case ok:
			return dev, nil
		}
	}
	// Else the links must at least not contradict each other.
	all, err := g.links()
	if err != nil {
		return "", err
	}
	for wwn, to := range all {
		if to == dev && wwn != uuid {
			return "", fmt.Errorf("%w: %s and %s%s both lead to %s", node.ErrNoDevice, link, prefix, wwn, dev)
		}
	}
	return dev, nil
}

// links are the disks by WWN.
func (g *Guest) links() (map[string]string, error) {
	entries, err := g.cfg.Host.ReadDir(byID)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, e := range entries {
		wwn, ok := strings.CutPrefix(e.Name(), prefix)
		if !ok || strings.Contains(wwn, "-part") {
			continue
		}
		if dev, err := g.cfg.Host.EvalSymlinks(path.Join(byID, e.Name())); err == nil {
			all[wwn] = dev
		}
	}
	return all, nil
}

// Devices implements node.Backend.
func (g *Guest) Devices() ([]string, error) {
	all, err := g.links()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, dev := range all {
		if !slices.Contains(out, dev) {
			out = append(out, dev)
		}
	}
	slices.Sort(out)
	return out, nil
}

// scan asks each SCSI host for new disks.
func (g *Guest) scan() {
	const dir = "/sys/class/scsi_host"
	hosts, err := g.cfg.Host.ReadDir(dir)
	if err != nil {
		return
	}
	for _, h := range hosts {
		f := path.Join(dir, h.Name(), "scan")
		if err := g.cfg.Host.WriteFile(f, []byte("- - -"), 0o200); err != nil {
			g.cfg.Log.Warn("scan of a SCSI host", "file", f, "err", err)
		}
	}
}

// Rescan implements node.Backend. A device without a rescan file isn't a SCSI
// disk and shows its size by itself.
func (g *Guest) Rescan(_ context.Context, device string) error {
	dev, err := g.cfg.Host.EvalSymlinks(device)
	if err != nil {
		return err
	}
	f := path.Join("/sys/block", path.Base(dev), "device/rescan")
	if _, err := g.cfg.Host.Stat(f); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return g.cfg.Host.WriteFile(f, []byte("1"), 0o200)
}
