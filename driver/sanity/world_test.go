package sanity_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"

	"github.com/csilab/csilab/driver"
	"github.com/csilab/csilab/driver/vsphere"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/vcenter"
)

const (
	nodeName     = "node-1"
	kubelet      = "/var/lib/kubelet"
	topologyFile = kubelet + "/topology"
)

// platform is what a node is made of. Its directory is short, since it holds
// sockets.
type platform struct {
	dir   string
	disks disk.Store
	// node makes the node with a BIOS uuid; s is the storage network that it is
	// on, nil for none.
	node func(bios string, s host.SAN, a host.Adapters, f *host.FileServers) (host.Host, error)
	// plugin runs the node's driver until ctx ends, and says where its socket is
	// for this process.
	plugin func(ctx context.Context, backend driver.Backend, h host.Host, log *slog.Logger) (socket string, done <-chan error, err error)
}

// memory is a node in memory with its driver in this process.
func memory(t *testing.T) *platform {
	p := &platform{dir: shortDir(t), disks: disk.NewMemory()}
	p.node = func(bios string, s host.SAN, a host.Adapters, f *host.FileServers) (host.Host, error) {
		return host.NewMemory(host.MemoryConfig{Name: nodeName, Seed: 11, BIOSUUID: bios, SAN: s, Adapters: a, Files: f}), nil
	}
	p.plugin = func(ctx context.Context, backend driver.Backend, h host.Host, log *slog.Logger) (string, <-chan error, error) {
		sock := filepath.Join(p.dir, "n.sock")
		done, err := embed(ctx, driver.Config{Mode: driver.Node, Backend: backend, Endpoint: "unix://" + sock, Host: h, TopologyFile: topologyFile, NodeName: nodeName, Log: log, Version: "test"})
		return sock, done, err
	}
	return p
}

func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// embed runs a driver in this process; it returns once that takes calls.
func embed(ctx context.Context, cfg driver.Config) (<-chan error, error) {
	d, err := driver.New(cfg)
	if err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	select {
	case <-d.Ready():
		return done, nil
	case err := <-done:
		return nil, fmt.Errorf("%s: %w", cfg.Mode, err)
	}
}

// world is a storage system, a node, and the driver's two parts, each on a
// socket.
type world struct {
	backend    string
	protocol   string // to the storage, "" for vsphere
	node       host.Host
	disks      disk.Store
	controller string
	plugin     string
	stop       func() error
	// secrets, parameters and mutable are files of csi-sanity's configuration;
	// "": none.
	secrets, parameters, mutable string
	// size of volumes in bytes; 0: csi-sanity's 10 GiB.
	size int64
}

// bus plugs disks of the vCenter into the node.
type bus struct {
	disks disk.Store
	mu    sync.Mutex
	node  host.Host
	open  map[string]disk.Image
}

func (b *bus) Attach(ctx context.Context, _, wwn, image string) error {
	img, err := b.disks.Open(image)
	if err != nil {
		return err
	}
	if err := b.node.AttachDisk(ctx, wwn, img); err != nil {
		img.Close()
		return err
	}
	b.mu.Lock()
	b.open[wwn] = img
	b.mu.Unlock()
	return nil
}

func (b *bus) Detach(ctx context.Context, _, wwn string) error {
	if err := b.node.DetachDisk(ctx, wwn); err != nil {
		return err
	}
	b.mu.Lock()
	img := b.open[wwn]
	delete(b.open, wwn)
	b.mu.Unlock()
	return img.Close()
}

// Resize is a node's business where writing to a rescan file does it.
func (b *bus) Resize(ctx context.Context, _, wwn string) error {
	if b.node.Kind() == "real" {
		return b.node.ResizeDisk(ctx, wwn)
	}
	return nil
}

// startVSphere builds a world with a vCenter.
func startVSphere(t *testing.T, p *platform) *world {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &world{backend: "vsphere", disks: p.disks}
	b := &bus{disks: w.disks, open: map[string]disk.Image{}}
	vc, err := vcenter.New(context.Background(), vcenter.Config{Seed: 11, TLS: true, Nodes: []vcenter.Node{{Name: nodeName, Zone: "zone-a"}}, Disks: w.disks, Hardware: b})
	must(err)
	w.node, err = p.node(vc.VMUUID(nodeName), nil, host.Adapters{}, nil)
	must(err)
	b.node = w.node
	t.Cleanup(func() { cancel(); vc.Close(); w.node.Close(); w.disks.Close() }) // after a failure here

	must(w.node.WriteFile(topologyFile, []byte("topology.csi.vmware.com/k8s-zone=\"zone-a\"\n"), 0o644))
	log := w.log(t)
	conf, err := vsphere.ParseConfig([]byte(vc.Conf("sanity")), func(string) string { return "" })
	must(err)
	w.controller = filepath.Join(p.dir, "c.sock")
	controller, err := embed(ctx, driver.Config{Mode: driver.Controller, Endpoint: "unix://" + w.controller, VSphere: &conf, StateDir: filepath.Join(p.dir, "state"), Log: log, Version: "test"})
	must(err)
	var plugin <-chan error
	w.plugin, plugin, err = p.plugin(ctx, driver.VSphere, w.node, log)
	must(err)
	w.stop = func() error {
		left := leftovers(w, vc)
		cancel()
		errs := []error{left, <-controller, <-plugin}
		vc.Close()
		errs = append(errs, w.node.Close(), w.disks.Close())
		return errors.Join(errs...)
	}
	return w
}

// log is where the world's drivers write.
func (w *world) log(t *testing.T) *slog.Logger {
	f := os.Getenv("CSILAB_SANITY_LOG")
	if f == "" {
		return slog.New(slog.DiscardHandler)
	}
	out, err := os.Create(f + "." + w.backend + w.protocol + "." + w.node.Kind())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// leftovers says what the specs, which clean up, left behind.
func leftovers(w *world, vc *vcenter.VCenter) error {
	var errs []error
	for _, v := range vc.Volumes() {
		errs = append(errs, fmt.Errorf("volume %s is left", v.ID))
	}
	for _, s := range vc.Snapshots() {
		errs = append(errs, fmt.Errorf("snapshot %v is left", s))
	}
	errs = append(errs, w.leftovers())
	return errors.Join(errs...)
}

// leftovers are those of the node and the disks.
func (w *world) leftovers() error {
	var errs []error
	for _, i := range w.disks.List() {
		errs = append(errs, fmt.Errorf("image %s is left", i.ID))
	}
	for _, d := range w.node.Disks() {
		errs = append(errs, fmt.Errorf("disk %s is left on the node", d))
	}
	mounts, err := w.node.Mounter().List()
	errs = append(errs, err)
	for _, m := range mounts {
		if len(m.Path) > len(kubelet) && m.Path[:len(kubelet)] == kubelet {
			errs = append(errs, fmt.Errorf("%s is left mounted", m.Path))
		}
	}
	return errors.Join(errs...)
}

// config of csi-sanity for this world. The directories are the node's.
func (w *world) config(access string) sanity.TestConfig {
	c := sanity.NewTestConfig()
	c.Address, c.ControllerAddress = "unix://"+w.plugin, "unix://"+w.controller
	c.TargetPath, c.StagingPath = kubelet+"/pods/sanity", kubelet+"/plugins/sanity"
	c.TestVolumeAccessType = access
	if w.size > 0 {
		c.TestVolumeSize, c.TestVolumeExpandSize = w.size, 2*w.size
	}
	c.SecretsFile, c.TestVolumeParametersFile, c.TestVolumeMutableParametersFile = w.secrets, w.parameters, w.mutable
	mkdir := func(p string) (string, error) { return p, w.node.MkdirAll(p, 0o750) }
	remove := func(p string) error {
		if err := w.node.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	c.CreateTargetDir, c.CreateStagingDir = mkdir, mkdir
	c.RemoveTargetPath, c.RemoveStagingPath = remove, remove
	c.CheckPath = func(p string) (sanity.PathKind, error) {
		fi, err := w.node.Stat(p)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return sanity.PathIsNotFound, nil
		case err != nil:
			return "", err
		case fi.IsDir():
			return sanity.PathIsDir, nil
		case fi.Mode().IsRegular():
			return sanity.PathIsFile, nil
		}
		return sanity.PathIsOther, nil
	}
	return c
}
