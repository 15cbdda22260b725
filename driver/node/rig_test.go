package node_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/mount-utils"
	"k8s.io/utils/exec"

	"github.com/csilab/csilab/driver/node"
	"github.com/csilab/csilab/driver/node/guest"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host"
)

const (
	volume  = "0f6a1c5e-51e5-4a55-8c1f-2b8f8d3a9c01"
	wwn     = "6000c29f1b2c3d4e5f60718293a4b5c6"
	wwn2    = "6000c29f1b2c3d4e5f60718293a4b5c7"
	staging = "/var/lib/kubelet/plugins/kubernetes.io/csi/csi.vsphere.vmware.com/abc/globalmount"
	pods    = "/var/lib/kubelet/pods"
	target  = pods + "/p1/volumes/kubernetes.io~csi/pv/mount"
	target2 = pods + "/p2/volumes/kubernetes.io~csi/pv/mount"
	mib     = int64(1) << 20
)

// rig is a node in memory with one disk plugged in, and the service on it.
type rig struct {
	*node.Service
	t     testing.TB
	host  *host.Memory
	disks disk.Store
}

func newRig(t testing.TB, size int64) *rig {
	t.Helper()
	r := &rig{t: t, disks: disk.NewMemory(), host: host.NewMemory(host.MemoryConfig{Name: "node-1", Seed: 7})}
	t.Cleanup(func() { r.host.Close(); r.disks.Close() })
	r.attach(wwn, "disk", size)
	for _, p := range []string{staging, parent(target), parent(target2)} {
		r.must(r.host.MkdirAll(p, 0o750))
	}
	r.Service = r.service(r.host)
	return r
}

// service is a driver that just started, on a host.
func (r *rig) service(h node.Host) *node.Service {
	r.t.Helper()
	log := slog.New(slog.NewTextHandler(logTo{r.t}, nil))
	g, err := guest.New(guest.Config{Host: h, Log: log, Wait: 1})
	r.must(err)
	s, err := node.New(node.Config{Host: h, Backend: g, MaxVolumes: 59, FormatDir: "/var/lib/plugin/formatting", Log: log})
	r.must(err)
	return s
}

type logTo struct{ t testing.TB }

func (l logTo) Write(p []byte) (int, error) {
	l.t.Log(string(bytes.TrimSpace(p)))
	return len(p), nil
}

func parent(p string) string { return p[:strings.LastIndexByte(p, '/')] }

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// attach plugs an image in, made when size is not 0.
func (r *rig) attach(wwn, id string, size int64) {
	r.t.Helper()
	if size > 0 {
		r.must(r.disks.Create(id, size))
	}
	img, err := r.disks.Open(id)
	r.must(err)
	r.t.Cleanup(func() { img.Close() })
	r.must(r.host.AttachDisk(context.Background(), wwn, img))
}

func (r *rig) grow(id string, size int64) { r.t.Helper(); r.must(r.disks.Grow(id, size)) }

func mode(m csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability_AccessMode {
	return &csi.VolumeCapability_AccessMode{Mode: m}
}

const (
	multi  = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	single = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	plain  = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	reader = csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY
)

func mounted(m csi.VolumeCapability_AccessMode_Mode, fs string, flags ...string) *csi.VolumeCapability {
	return &csi.VolumeCapability{AccessMode: mode(m), AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fs, MountFlags: flags}}}
}

func raw(m csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{AccessMode: mode(m), AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}}
}

func stageReq(c *csi.VolumeCapability) *csi.NodeStageVolumeRequest {
	return &csi.NodeStageVolumeRequest{VolumeId: volume, StagingTargetPath: staging, VolumeCapability: c, PublishContext: map[string]string{"diskUUID": wwn}}
}

func publishReq(c *csi.VolumeCapability, target string, ro bool) *csi.NodePublishVolumeRequest {
	return &csi.NodePublishVolumeRequest{VolumeId: volume, StagingTargetPath: staging, TargetPath: target, VolumeCapability: c, Readonly: ro, PublishContext: map[string]string{"diskUUID": wwn}}
}

type nodeServer = csi.NodeServer

func stage(s nodeServer, c *csi.VolumeCapability) error {
	_, err := s.NodeStageVolume(context.Background(), stageReq(c))
	return err
}

func publish(s nodeServer, c *csi.VolumeCapability, target string, ro bool) error {
	_, err := s.NodePublishVolume(context.Background(), publishReq(c, target, ro))
	return err
}

func unpublish(s nodeServer, target string) error {
	_, err := s.NodeUnpublishVolume(context.Background(), &csi.NodeUnpublishVolumeRequest{VolumeId: volume, TargetPath: target})
	return err
}

func unstage(s nodeServer) error {
	_, err := s.NodeUnstageVolume(context.Background(), &csi.NodeUnstageVolumeRequest{VolumeId: volume, StagingTargetPath: staging})
	return err
}

func (r *rig) code(err error, want codes.Code, words ...string) {
	r.t.Helper()
	if got := status.Code(err); got != want {
		r.t.Fatalf("code %s, want %s: %v", got, want, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			r.t.Errorf("error %q doesn't say %q", err, w)
		}
	}
}

// mounts are the mounts below the kubelet's directory.
func (r *rig) mounts() []mount.MountPoint {
	r.t.Helper()
	all, err := r.host.Mounter().List()
	r.must(err)
	var out []mount.MountPoint
	for _, m := range all {
		if strings.HasPrefix(m.Path, "/var/lib/kubelet/") {
			out = append(out, m)
		}
	}
	return out
}

func (r *rig) exists(p string) bool {
	_, err := r.host.Lstat(p)
	return err == nil
}

// writeSynced and read are what a pod does.
func (r *rig) writeSynced(p, data string) {
	r.t.Helper()
	r.must(r.host.WriteAt(p, 0, []byte(data), true))
}

func (r *rig) read(p string, n int) string {
	r.t.Helper()
	b, err := r.host.ReadAt(p, 0, n)
	r.must(err)
	return string(b)
}

// steps is a host whose changing operations are counted, and of which one can
// be the last: it happens (after) or not, and from then on everything fails, as
// for a process that was killed there.
type steps struct {
	*host.Memory
	mu    sync.Mutex
	log   []string
	last  int // 1-based; 0: none
	after bool
	dead  bool
	// hold, when set, is called before each operation.
	hold func(op string)
}

var errKilled = fmt.Errorf("killed")

func (s *steps) do(op string, f func() error) error {
	s.mu.Lock()
	if s.dead {
		s.mu.Unlock()
		return errKilled
	}
	s.log = append(s.log, op)
	at := len(s.log) == s.last
	s.dead = s.dead || at
	s.mu.Unlock()
	if s.hold != nil {
		s.hold(op)
	}
	if at && !s.after {
		return errKilled
	}
	err := f()
	if at {
		return errKilled
	}
	return err
}

func (s *steps) WriteFile(p string, data []byte, perm fs.FileMode) error {
	return s.do("WriteFile "+p, func() error { return s.Memory.WriteFile(p, data, perm) })
}

func (s *steps) MkdirAll(p string, perm fs.FileMode) error {
	return s.do("MkdirAll "+p, func() error { return s.Memory.MkdirAll(p, perm) })
}

func (s *steps) Remove(p string) error {
	return s.do("Remove "+p, func() error { return s.Memory.Remove(p) })
}

func (s *steps) Mounter() mount.Interface { return stepMounter{s.Memory.Mounter(), s} }
func (s *steps) Exec() exec.Interface     { return stepExec{s.Memory.Exec(), s} }

type stepMounter struct {
	mount.Interface
	s *steps
}

// Mount takes the two steps that a bind mount has for the kernel.
func (m stepMounter) Mount(source, target, fstype string, options []string) error {
	if bind, first, _ := mount.MakeBindOpts(options); bind {
		err := m.s.do("bind "+target, func() error {
			_, err := m.s.Memory.Exec().Command("mount", "-o", strings.Join(first, ","), source, target).CombinedOutput()
			return err
		})
		if err != nil {
			return err
		}
		again := strings.Join(append([]string{"remount"}, options...), ",")
		return m.s.do("remount "+target, func() error {
			_, err := m.s.Memory.Exec().Command("mount", "-o", again, source, target).CombinedOutput()
			return err
		})
	}
	return m.s.do("mount "+target, func() error { return m.Interface.Mount(source, target, fstype, options) })
}

func (m stepMounter) Unmount(target string) error {
	return m.s.do("umount "+target, func() error { return m.Interface.Unmount(target) })
}

type stepExec struct {
	exec.Interface
	s *steps
}

func (e stepExec) Command(cmd string, args ...string) exec.Cmd {
	return stepCmd{e.Interface.Command(cmd, args...), cmd, e.s}
}

type stepCmd struct {
	exec.Cmd
	name string
	s    *steps
}

func (c stepCmd) CombinedOutput() (out []byte, err error) {
	err = c.s.do(c.name, func() (err error) { out, err = c.Cmd.CombinedOutput(); return err })
	return out, err
}
