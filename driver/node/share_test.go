package node_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csilab/csilab/driver/node"
	"github.com/csilab/csilab/driver/node/san"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host"
)

// server is an NFS server with one export for everybody.
type server struct {
	store disk.Store
	mu    sync.Mutex
	err   error
	bytes int64
}

func (s *server) Export(_ host.Client, _, path string) (host.Export, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil && path != "/file/v/v" {
		return host.Export{}, host.ErrNoExport
	}
	return host.Export{Image: "v", Bytes: s.bytes}, s.err
}

func (s *server) Open(image string) (disk.Image, error) { return s.store.Open(image) }

func (s *server) fails(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// shareRig is nodes with the service, on one server.
type shareRig struct {
	*rig
	server *server
	nodes  []*host.Memory
}

func newShareRig(t testing.TB) *shareRig {
	t.Helper()
	r := &shareRig{rig: &rig{t: t, disks: disk.NewMemory()}}
	r.server = &server{store: r.disks, bytes: 64 * mib}
	files := host.NewFileServers(r.server)
	r.must(r.disks.Create("v", 64*mib))
	for _, n := range []string{"node-1", "node-2"} {
		h := host.NewMemory(host.MemoryConfig{Name: n, Seed: 7, Files: files})
		for _, p := range []string{staging, parent(target), parent(target2)} {
			r.must(h.MkdirAll(p, 0o750))
		}
		r.nodes = append(r.nodes, h)
	}
	t.Cleanup(func() {
		for _, h := range r.nodes {
			h.Close()
		}
		files.Close()
		r.disks.Close()
	})
	r.host = r.nodes[0]
	r.Service = r.on(0)
	return r
}

// on is a driver that just started on a node.
func (r *shareRig) on(i int) *node.Service {
	r.t.Helper()
	log := slog.New(slog.NewTextHandler(logTo{r.t}, nil))
	b, err := san.New(san.Config{Host: r.nodes[i], NodeName: r.nodes[i].Name(), Log: log})
	r.must(err)
	s, err := node.New(node.Config{Host: r.nodes[i], Backend: b, Log: log})
	r.must(err)
	return s
}

const shared = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER

func shareContext(change ...string) map[string]string {
	c := map[string]string{"accessProtocol": "nfs", "exportIP": "198.18.2.1", "mountPath": "/file/v/v", "readOnly": "false"}
	for i := 0; i+1 < len(change); i += 2 {
		c[change[i]] = change[i+1]
	}
	return c
}

func stageShare(s nodeServer, c *csi.VolumeCapability, change ...string) error {
	q := stageReq(c)
	q.PublishContext = shareContext(change...)
	_, err := s.NodeStageVolume(context.Background(), q)
	return err
}

func publishShare(s nodeServer, c *csi.VolumeCapability, target string, ro bool, change ...string) error {
	q := publishReq(c, target, ro)
	q.PublishContext = shareContext(change...)
	_, err := s.NodePublishVolume(context.Background(), q)
	return err
}

func (r *shareRig) code(what string, err error, want codes.Code, says string) {
	r.t.Helper()
	if status.Code(err) != want || err != nil && !strings.Contains(err.Error(), says) {
		r.t.Errorf("%s: %v, expected %s with %q", what, err, want, says)
	}
}

// shareMounts are where a node has shares mounted.
func (r *shareRig) shareMounts(i int) (out []string) {
	ms, err := r.nodes[i].Mounter().List()
	r.must(err)
	for _, m := range ms {
		if m.Type == "nfs4" {
			out = append(out, m.Path)
		}
	}
	return out
}

// A share goes through its life on two nodes, each call twice, and a driver that
// was started anew finds it.
func TestShareLife(t *testing.T) {
	r := newShareRig(t)
	c := mounted(shared, "", "vers=4.1", "noatime")
	for i, h := range r.nodes {
		s := r.on(i)
		for range 2 {
			r.must(stageShare(s, c))
			s = r.on(i)
			r.must(publishShare(s, c, target, false))
			r.must(publishShare(s, c, target2, true))
		}
		r.must(h.WriteFile(target+"/"+h.Name(), []byte("by "+h.Name()), 0o644))
		if err := h.WriteFile(target2+"/x", nil, 0o644); err == nil {
			t.Error("a target that was published read-only can be written to")
		}
	}
	for _, h := range r.nodes {
		for _, by := range r.nodes {
			if got, err := h.ReadFile(target2 + "/" + by.Name()); err != nil || string(got) != "by "+by.Name() {
				t.Errorf("%s reads %q, %v", h.Name(), got, err)
			}
		}
	}
	s := r.on(0)
	st, err := s.NodeGetVolumeStats(context.Background(), &csi.NodeGetVolumeStatsRequest{VolumeId: volume, VolumePath: target})
	if u := st.GetUsage(); err != nil || len(u) != 2 || u[0].GetTotal() < 56*mib || u[0].GetTotal() > 64*mib || u[1].GetUsed() < 2 {
		t.Errorf("stats %v, %v", st, err)
	}
	x, err := s.NodeExpandVolume(context.Background(), &csi.NodeExpandVolumeRequest{VolumeId: volume, VolumePath: target, StagingTargetPath: staging, VolumeCapability: c, CapacityRange: &csi.CapacityRange{RequiredBytes: 128 * mib}})
	if err != nil || x.GetCapacityBytes() != 128*mib {
		t.Errorf("expand %v, %v", x, err)
	}
	unstage := func(s nodeServer) error {
		_, err := s.NodeUnstageVolume(context.Background(), &csi.NodeUnstageVolumeRequest{VolumeId: volume, StagingTargetPath: staging})
		return err
	}
	r.code("unstage while published", unstage(s), codes.FailedPrecondition, target)
	for i := range r.nodes {
		s := r.on(i)
		for range 2 {
			r.must(unpublish(s, target))
			r.must(unpublish(s, target2))
			r.must(unstage(s))
			s = r.on(i)
		}
		if m := r.shareMounts(i); len(m) > 0 {
			t.Errorf("mounts left: %q", m)
		}
	}
	if _, err := r.nodes[0].Stat(staging); err != nil {
		t.Errorf("the staging directory is the orchestrator's: %v", err)
	}
}

func TestShareRefused(t *testing.T) {
	r := newShareRig(t)
	c := mounted(shared, "")
	for what, f := range map[string]struct {
		err  error
		code codes.Code
		says string
	}{
		"block":               {stageShare(r, raw(shared)), codes.FailedPrecondition, "block"},
		"many nodes, device":  {stage(r, c), codes.FailedPrecondition, "MULTI_NODE"},
		"no address":          {stageShare(r, c, "exportIP", "server"), codes.InvalidArgument, "exportIP"},
		"no path":             {stageShare(r, c, "mountPath", "file"), codes.InvalidArgument, "mountPath"},
		"a path with options": {stageShare(r, c, "mountPath", "/a b"), codes.InvalidArgument, "mountPath"},
		"read only":           {stageShare(r, c, "readOnly", "perhaps"), codes.InvalidArgument, "readOnly"},
		"no such export":      {stageShare(r, c, "mountPath", "/file/w/w"), codes.Internal, "No such file"},
		"not staged":          {publishShare(r, c, target, false), codes.FailedPrecondition, "not staged"},
	} {
		r.code(what, f.err, f.code, f.says)
	}
	if m := r.shareMounts(0); len(m) > 0 {
		t.Errorf("mounts left: %q", m)
	}
	r.must(stageShare(r, c))
	r.code("another share", stageShare(r, c, "mountPath", "/file/w/w"), codes.AlreadyExists, "/file/v/v")
	r.code("another mode", stageShare(r, c, "readOnly", "true"), codes.AlreadyExists, "ro")
	r.code("another share's publish", publishShare(r, c, target, false, "mountPath", "/file/w/w"), codes.FailedPrecondition, "/file/v/v")
	// One target at most, where the mode says so.
	r.must(publishShare(r, mounted(single, ""), target, false))
	r.code("a second target", publishShare(r, mounted(single, ""), target2, false), codes.FailedPrecondition, target)
}

// Readers of many nodes get a mount that can't be written to.
func TestShareReadOnly(t *testing.T) {
	r := newShareRig(t)
	c := mounted(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, "")
	r.must(stageShare(r, c, "readOnly", "true"))
	r.must(publishShare(r, c, target, false, "readOnly", "true"))
	if err := r.host.WriteFile(target+"/x", nil, 0o644); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("write: %v", err)
	}
}

// A share that went away behind the driver's back is taken off and mounted again
// once it is there.
func TestShareStaleMount(t *testing.T) {
	r := newShareRig(t)
	c := mounted(shared, "")
	r.must(stageShare(r, c))
	r.must(publishShare(r, c, target, false))
	r.server.fails(host.ErrExportAccess)
	_, err := r.NodeGetVolumeStats(context.Background(), &csi.NodeGetVolumeStatsRequest{VolumeId: volume, VolumePath: target})
	r.code("stats", err, codes.Internal, "stale")
	r.code("publish", publishShare(r, c, target2, false), codes.FailedPrecondition, "stale")
	r.code("stage", stageShare(r, c), codes.Internal, "access denied")
	r.server.fails(nil)
	r.must(stageShare(r, c))
	r.must(publishShare(r, c, target2, false))
	r.must(r.host.WriteFile(target2+"/x", nil, 0o644))
	r.server.fails(host.ErrNoExport)
	r.must(unpublish(r, target))
	r.must(unpublish(r, target2))
	_, err = r.NodeUnstageVolume(context.Background(), &csi.NodeUnstageVolumeRequest{VolumeId: volume, StagingTargetPath: staging})
	r.must(err)
	if m := r.shareMounts(0); len(m) > 0 {
		t.Errorf("mounts left: %q", m)
	}
}

// While the server doesn't answer the driver does: it says so in bounded time, and
// takes mounts off, also under a program that waits in them.
func TestShareServerSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newShareRig(t)
		c := mounted(shared, "")
		r.must(stageShare(r, c))
		r.must(publishShare(r, c, target, false))
		r.server.fails(host.ErrServerUnreachable)
		stuck := make(chan error, 1)
		go func() { stuck <- r.host.WriteFile(target+"/x", []byte("late"), 0o644) }()
		start := time.Now()
		r.code("stage", stageShare(r, c), codes.Unavailable, "does not answer")
		r.code("publish", publishShare(r, c, target2, false), codes.Unavailable, "does not answer")
		_, err := r.NodeGetVolumeStats(context.Background(), &csi.NodeGetVolumeStatsRequest{VolumeId: volume, VolumePath: target})
		r.code("stats", err, codes.Internal, "does not answer")
		r.must(unpublish(r, target))
		if took := time.Since(start); took > time.Minute {
			t.Errorf("it took %v", took)
		}
		if err := <-stuck; err == nil {
			t.Error("the write succeeds")
		}
		_, err = r.NodeUnstageVolume(context.Background(), &csi.NodeUnstageVolumeRequest{VolumeId: volume, StagingTargetPath: staging})
		r.must(err)
		if m := r.shareMounts(0); len(m) > 0 {
			t.Errorf("mounts left: %q", m)
		}
		r.must(r.nodes[0].PowerOff())
		synctest.Wait()
	})
}
