package san_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host/scsi"
	"github.com/csilab/csilab/sim/san"
)

// kept is a SAN over files whose state is kept.
func kept(t *testing.T, dir string, cfg san.Config) (*rig, func()) {
	t.Helper()
	store, err := disk.NewFiles(filepath.Join(dir, "disks"))
	ok(t, err)
	cfg.Store, cfg.StateDir = store, filepath.Join(dir, "state")
	r := newRig(t, cfg)
	return r, func() { r.san.Close(); store.Close() }
}

// killed copies what a process that is killed now would leave.
func killed(t *testing.T, dir string) string {
	t.Helper()
	to := t.TempDir()
	if out, err := exec.Command("cp", "-r", dir+"/.", to).CombinedOutput(); err != nil { // keeps holes
		t.Fatalf("%v: %s", err, out)
	}
	return to
}

// TestStateOutlivesTheProcess, whether that ends well or not: volumes, content,
// exports and secrets are there again, and serial numbers go on.
func TestStateOutlivesTheProcess(t *testing.T) {
	dir := t.TempDir()
	two := func() san.Config {
		return san.Config{Seed: 3, Arrays: make([]san.ArrayConfig, 2), Pairs: []san.Pair{{"array1", "array2"}}}
	}
	r, stop := kept(t, dir, two())
	r.volume("array1", "v")
	r.host("array1", "n1")
	r.export("array1", "v", "n1")
	n := r.node("n1")
	n.write(0, "old")
	r.want(201, "array1", "POST", "/volumes/v", `{"action":"createSnapshot","parameters":{"name":"s","readOnly":true}}`)
	n.write(0, "new")
	r.want(200, "array1", "PUT", "/hosts/n1", `{"chapOperation":1,"chapOperationMode":1,"chapName":"user","chapSecret":"secret-of-n1"}`)
	wwn := r.array("array1").Volumes()[0].WWN
	serial := r.array("array2").Serial()

	again := func(t *testing.T, dir string) {
		// What was made and not written down belongs to nobody.
		old, _ := filepath.Glob(filepath.Join(dir, "disks", "*-1-0.*"))
		if len(old) != 1 {
			t.Fatalf("content of v is in %v", old)
		}
		orphan := strings.Replace(old[0], "-1-0", "-99-0", 1)
		ok(t, os.WriteFile(orphan, []byte("x"), 0o600))
		r, stop := kept(t, dir, two())
		defer stop()
		if _, err := os.Stat(orphan); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("what nobody needs: %v", err)
		}
		a := r.array("array1")
		if v := a.Volumes(); len(v) != 1 || v[0].WWN != wwn || r.array("array2").Serial() != serial || len(a.Exports()) != 1 || len(a.CPGs()) != 2 {
			t.Fatalf("volumes %+v, exports %+v", v, a.Exports())
		}
		n := &node{r: r, name: "n1", SAN: r.san.For("n1", scsi.Adapters{IQN: iqn + "n1"})}
		found, err := n.Discover(t.Context(), iqn+"n1", "192.0.2.10:3260")
		ok(t, err)
		n.targets = found
		if err := n.Login(t.Context(), iqn+"n1", found[0], scsi.CHAP{}); !errors.Is(err, scsi.ErrAuthentication) {
			t.Fatalf("without CHAP: %v", err)
		}
		ok(t, n.Login(t.Context(), iqn+"n1", found[0], scsi.CHAP{User: "user", Secret: "secret-of-n1"}))
		n.is(0, "new")
		n.write(0, "new") // into space that it has already, and the snapshot's
		if c := a.CPGs()[0]; c.UserMiB != 256 || c.SnapshotMiB != 256 {
			t.Errorf("CPG is %+v", c)
		}
		r.export("array1", "s", "n1")
		n.is(1, "old")
		ok(t, a.RemoveVLUN("s", ""))
		r.want(200, "array1", "DELETE", "/volumes/s", "")
		r.volume("array1", "w")
		if w := a.Volumes()[1]; w.WWN == wwn {
			t.Fatal("the WWN is there twice")
		}
	}
	t.Run("killed", func(t *testing.T) { again(t, killed(t, dir)) })
	stop()
	t.Run("closed", func(t *testing.T) { again(t, dir) })
	err := filepath.WalkDir(filepath.Join(dir, "state"), func(path string, d fs.DirEntry, err error) error {
		if i, _ := d.Info(); err == nil && !d.IsDir() && i.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %s", path, i.Mode())
		}
		return err
	})
	ok(t, err)
	if left, _ := filepath.Glob(filepath.Join(dir, "disks", "*")); len(left) != 2 { // v, w
		t.Errorf("content: %v", left)
	}
}

// TestReplacedContentOutlivesTheProcess: content is exchanged by a promotion;
// killed before or after it is written down, there is one of the two.
func TestReplacedContentOutlivesTheProcess(t *testing.T) {
	dir := t.TempDir()
	r, stop := kept(t, dir, san.Config{})
	defer stop()
	r.volume("array1", "v")
	r.host("array1", "n1")
	r.export("array1", "v", "n1")
	n := r.node("n1")
	n.write(0, "old")
	r.want(201, "array1", "POST", "/volumes/v", `{"action":"createSnapshot","parameters":{"name":"s","readOnly":true}}`)
	n.write(0, "new")
	ok(t, r.array("array1").RemoveVLUN("v", ""))
	r.want(200, "array1", "PUT", "/volumes/s", `{"action":4}`)
	before := killed(t, dir)
	ok(t, r.array("array1").Change(func(now time.Time) ([]array.ContentOp, error) {
		return r.array("array1").Core().Tick(now.Add(time.Hour)), nil
	}))
	after := killed(t, dir)
	for dir, running := range map[string]bool{before: true, after: false} {
		r, stop := kept(t, dir, san.Config{})
		if got := r.array("array1").Tasks()[0].Status == array.TaskActive; got != running {
			t.Errorf("task active: %v, want %v", got, running)
		}
		ok(t, r.array("array1").Change(func(now time.Time) ([]array.ContentOp, error) {
			return r.array("array1").Core().Tick(now.Add(2 * time.Hour)), nil
		}))
		r.export("array1", "v", "n1")
		r.node("n1").is(0, "old")
		if left, _ := filepath.Glob(filepath.Join(dir, "disks", "*")); len(left) != 2 {
			t.Errorf("content: %v", left)
		}
		stop()
	}
}

// TestPairOutlivesTheProcess: volumes of a group in sync have one content, before
// and after.
func TestPairOutlivesTheProcess(t *testing.T) {
	dir := t.TempDir()
	two := func() san.Config {
		return san.Config{Arrays: make([]san.ArrayConfig, 2), Pairs: []san.Pair{{"array1", "array2"}}}
	}
	r, stop := kept(t, dir, two())
	defer stop()
	r.volume("array1", "v")
	r.want(201, "array1", "POST", "/remotecopygroups", `{"name":"g","targets":[{"targetName":"array2","mode":1,"userCPG":"SSD_r6","snapCPG":"SSD_r6"}]}`)
	r.want(200, "array1", "PUT", "/remotecopygroups/g", `{"targets":[{"targetName":"array2","policies":{"autoFailover":true}}]}`)
	r.want(201, "array1", "POST", "/remotecopygroups/g/volumes", `{"volumeName":"v","volumeAutoCreation":true,"targets":[{"targetName":"array2","secVolumeName":"v"}]}`)
	for _, on := range []string{"array1", "array2"} {
		r.host(on, "n1")
		r.export(on, "v", "n1")
	}
	n := r.node("n1")
	n.write(0, "before")
	r.want(200, "array1", "PUT", "/remotecopygroups/g", `{"action":3}`)
	syncing := killed(t, dir)
	ok(t, r.array("array1").Change(func(now time.Time) ([]array.ContentOp, error) {
		return r.array("array1").Core().Tick(now.Add(time.Hour)), nil
	}))
	n.write(0, "in sync")
	synced := killed(t, dir)
	for dir, text := range map[string]string{syncing: "before", synced: "in sync"} {
		r, stop := kept(t, dir, two())
		ok(t, r.array("array1").Change(func(now time.Time) ([]array.ContentOp, error) {
			return r.array("array1").Core().Tick(now.Add(time.Hour)), nil
		}))
		n := r.node("n1")
		n.wantPaths(0, 8, 4)
		n.is(0, text)
		if left, _ := filepath.Glob(filepath.Join(dir, "disks", "*")); len(left) != 1 {
			t.Errorf("content: %v", left)
		}
		ok(t, r.san.ArrayDown("array1", true))
		n.wantPaths(0, 4, 4)
		n.is(0, text)
		n.write(0, "on two")
		stop()
		r, stop = kept(t, dir, two())
		n = r.node("n1")
		n.is(0, "on two") // and what array1 has takes no I/O
		stop()
	}
}

func TestStateThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	r, stop := kept(t, dir, san.Config{})
	r.volume("array1", "v")
	store, err := disk.NewFiles(t.TempDir())
	ok(t, err)
	defer store.Close()
	refused := func(t *testing.T, want string, cfg san.Config) {
		t.Helper()
		cfg.StateDir = filepath.Join(dir, "state")
		s, err := san.New(context.Background(), cfg)
		if err == nil {
			s.Close()
		}
		if _, is := errors.AsType[*san.StateError](err); !is || !strings.Contains(err.Error(), want) {
			t.Errorf("want %s: %v", want, err)
		}
	}
	refused(t, "in use by process", san.Config{Store: store})
	stop()
	refused(t, "another seed", san.Config{Store: store, Seed: 8})
	refused(t, "not configured", san.Config{Store: store, Arrays: []san.ArrayConfig{{Config: array.Config{Name: "other"}}}})
	refused(t, "no such image", san.Config{Store: store})
	ok(t, os.WriteFile(filepath.Join(dir, "state", "san.json"), []byte("{"), 0o600))
	refused(t, "san.json", san.Config{Store: store})
}

// TestStateThatCannotBeKept: a command whose effect can't be written down is
// not acknowledged.
func TestStateThatCannotBeKept(t *testing.T) {
	dir := t.TempDir()
	var told error
	r, stop := kept(t, dir, san.Config{OnStateError: func(err error) { told = err }})
	defer stop()
	state := filepath.Join(dir, "state")
	ok(t, os.Rename(state, state+"-away"))
	if b := r.want(500, "array1", "POST", "/volumes", `{"name":"v","cpg":"SSD_r6","sizeMiB":1024}`); !strings.Contains(b, `"code":1`) {
		t.Error(b)
	}
	if _, is := errors.AsType[*san.StateError](told); !is {
		t.Errorf("told %v", told)
	}
	ok(t, os.Rename(state+"-away", state))
	r.volume("array1", "w")
	stop()
	if err := r.array("array1").SetPassword("3paradm", "late"); !errors.Is(err, san.ErrClosed) {
		t.Errorf("a change after the end: %v", err)
	}
}
