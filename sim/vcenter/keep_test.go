package vcenter_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	cnstypes "github.com/vmware/govmomi/cns/types"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/vcenter"
)

// killed is what a process that is killed now leaves of its state directory.
func killed(t *testing.T, dir string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

func TestKillLosesNothingAcknowledged(t *testing.T) {
	ctx := t.Context()
	store := func(dir string) disk.Store {
		s, err := disk.NewFiles(filepath.Join(dir, "disks"))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	dir := t.TempDir()
	cfg := vcenter.Config{Seed: 4, StateDir: dir, Disks: store(dir)}
	v := start(t, cfg)
	c, err := cnsClient(ctx, login(t, v))
	if err != nil {
		t.Fatal(err)
	}
	create := func(c *client, name string) (string, error) { // small: images are copied
		s := volumeSpec(name)
		s.BackingObjectDetails = &cnstypes.CnsBlockBackingDetails{CnsBackingObjectDetails: cnstypes.CnsBackingObjectDetails{CapacityInMb: 1}}
		task, err := c.cns.CreateVolume(ctx, []cnstypes.CnsVolumeCreateSpec{s})
		r, _, err := c.result(ctx, task, err)
		if err != nil {
			return "", err
		}
		return r.VolumeId.Id, nil
	}
	var wg sync.WaitGroup
	ids := make([]string, 8)
	for i := range ids {
		c, err := cnsClient(ctx, login(t, v)) // of its own: waits on one collector cancel each other
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			id, err := create(c, fmt.Sprintf("pvc-%d", i))
			if err != nil {
				t.Error(err)
			}
			ids[i] = id
		})
	}
	wg.Wait()
	vm, err := c.vm(ctx, v, "node-1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.attach(ctx, ids[0], vm); err != nil {
		t.Fatal(err)
	}
	snap := func(c *client, id string) error {
		task, err := c.cns.CreateSnapshots(ctx, []cnstypes.CnsSnapshotCreateSpec{{VolumeId: cnstypes.CnsVolumeId{Id: id}, Description: "d"}})
		_, _, err = c.result(ctx, task, err)
		return err
	}
	if err := snap(c, ids[1]); err != nil {
		t.Fatal(err)
	}
	if err := c.delete(ctx, ids[7]); err != nil {
		t.Fatal(err)
	}
	at := killed(t, dir)
	// What came after is not acknowledged in the copy: its ids come again.
	if _, err := create(c, "late"); err != nil {
		t.Fatal(err)
	}
	half := killed(t, dir)
	if err := os.Remove(filepath.Join(half, "vcenter.json")); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(at, "vcenter.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(half, "vcenter.json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{at, half} {
		cfg.StateDir, cfg.Disks = dir, store(dir)
		w := start(t, cfg)
		if n := len(w.Volumes()); n != 7 {
			t.Errorf("%d volumes after a kill, want 7", n)
		}
		if d := w.Disks()[w.VMUUID("node-1")]; len(d) != 1 || d[0].VolumeID != ids[0] {
			t.Errorf("attached after a kill: %+v", d)
		}
		if s := w.Snapshots(); len(s) != 1 || s[0].Volume != ids[1] {
			t.Errorf("snapshots after a kill: %+v", s)
		}
		wc, err := cnsClient(ctx, login(t, w))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := create(wc, "late"); err != nil {
			t.Errorf("create after a kill: %v", err)
		}
		if err := snap(wc, ids[2]); err != nil {
			t.Errorf("snapshot after a kill: %v", err)
		}
	}
}

func TestStateDirHasOneVCenter(t *testing.T) {
	dir := t.TempDir()
	v := start(t, vcenter.Config{StateDir: dir})
	_, err := vcenter.New(t.Context(), vcenter.Config{StateDir: dir})
	var se *vcenter.StateError
	if !errors.As(err, &se) || !strings.Contains(err.Error(), fmt.Sprintf("in use by process %d", os.Getpid())) {
		t.Errorf("second vCenter on one directory: %v", err)
	}
	v.Close()
	start(t, vcenter.Config{StateDir: dir})
}

func TestStateDiskThatIsGone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	var told atomic.Int32
	v := start(t, vcenter.Config{StateDir: dir, OnStateError: func(err error) {
		var se *vcenter.StateError
		if !errors.As(err, &se) {
			t.Errorf("%T: %v", err, err)
		}
		told.Add(1)
	}})
	c, err := cnsClient(t.Context(), login(t, v))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.create(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"b", "c"} {
		if _, err := c.create(t.Context(), name); err == nil || !strings.Contains(err.Error(), "state directory") {
			t.Errorf("create without a state disk: %v", err)
		}
	}
	if n := told.Load(); n != 1 {
		t.Errorf("told %d times", n)
	}
	if _, err := vcenter.New(context.Background(), vcenter.Config{StateDir: filepath.Join("/dev/null", "x")}); !errors.As(err, new(*vcenter.StateError)) {
		t.Errorf("a directory that can't be: %v", err)
	}
}
