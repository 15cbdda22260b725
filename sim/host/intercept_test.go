package host_test

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/ledger"
)

func lifeOfAVolume(t *testing.T, h host.Host, dev string) error {
	t.Helper()
	if err := h.MkdirAll(staging, 0o700); err != nil {
		return err
	}
	if err := tryFormatAndMount(h, dev, staging, "ext4"); err != nil {
		return err
	}
	if err := h.WriteFile(staging+"/f", []byte("x"), 0o600); err != nil {
		return err
	}
	if _, err := h.ReadFile(staging + "/f"); err != nil {
		return err
	}
	if err := h.Mounter().Unmount(staging); err != nil {
		return err
	}
	return h.Remove(staging)
}

func TestInterceptEntries(t *testing.T) {
	w := memoryWorld(t)
	h := w.node(t)
	w.disk(t, "v", 32<<20)
	dev := w.attach(t, h, "v")
	in := &fault.Interceptor{Ledger: &ledger.Ledger{}, Plan: &fault.Plan{}}
	must(t, lifeOfAVolume(t, host.Intercept(h, in, "driver@node-1"), dev))
	var ops []string
	for _, e := range in.Ledger.Entries() {
		ops = append(ops, e.Op)
		if e.Hop != ledger.Host || e.Component != "driver@node-1" || e.Node != "node-1" || e.Outcome != ledger.OK && e.Op != "exec blkid" {
			t.Errorf("entry %+v", e)
		}
		if e.Op == "Mount" && e.Request != staging+" source="+dev+" fstype=ext4 options=defaults" {
			t.Errorf("request %q", e.Request)
		}
	}
	want := []string{"MkdirAll", "exec blkid", "exec mkfs.ext4", "Mount", "WriteFile", "Unmount", "Remove"}
	if !slices.Equal(ops, want) {
		t.Errorf("operations %v, want %v", ops, want)
	}
}

func TestInterceptSecrets(t *testing.T) {
	w := memoryWorld(t)
	h := w.node(t)
	in := &fault.Interceptor{Ledger: &ledger.Ledger{}}
	err := host.Intercept(h, in, "driver").Mounter().MountSensitive("/dev/sdb", staging, "ext4", []string{"ro"}, []string{"password=hunter2"})
	if err == nil {
		t.Fatal("mounted what isn't there")
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("secret in %v", err)
	}
	for _, e := range in.Ledger.Entries() {
		if strings.Contains(e.Request+e.Error, "hunter2") {
			t.Errorf("secret in %+v", e)
		}
	}
}

func TestInterceptFaults(t *testing.T) {
	w := memoryWorld(t)
	inner := w.node(t)
	w.disk(t, "v", 32<<20)
	w.attach(t, inner, "v")
	for _, c := range []struct {
		name string
		rule fault.Rule
		do   func(h host.Host) error
		want error
		done bool // the operation happened
	}{
		{"before", fault.Rule{Op: "MkdirAll", Do: fault.Error(syscall.ENOSPC)}, func(h host.Host) error { return h.MkdirAll("/mnt/a", 0o700) }, syscall.ENOSPC, false},
		{"after", fault.Rule{Op: "MkdirAll", Phase: fault.After, Do: fault.Error(syscall.EIO)}, func(h host.Host) error { return h.MkdirAll("/mnt/a", 0o700) }, syscall.EIO, true},
		{"drop", fault.Rule{Op: "MkdirAll", Do: fault.Drop()}, func(h host.Host) error { return h.MkdirAll("/mnt/a", 0o700) }, syscall.EIO, false},
		{"crash", fault.Rule{Op: "MkdirAll", Do: fault.Crash("")}, func(h host.Host) error { return h.MkdirAll("/mnt/a", 0o700) }, host.ErrFenced, false},
		{"command", fault.Rule{Op: "exec mkfs.ext4", Do: fault.Error(syscall.EIO)}, func(h host.Host) error {
			return errors.Join(h.Exec().Command("mkfs.ext4", "-F", "/dev/sdb").Run(), h.Exec().Command("blkid", "/dev/sdb").Run(), h.MkdirAll("/mnt/a", 0o700))
		}, syscall.EIO, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := &fault.Interceptor{Ledger: &ledger.Ledger{}, Plan: &fault.Plan{}}
			fenced := host.Fence(inner)
			in.OnCrash = func(component string) {
				if component != "driver" {
					t.Errorf("crashed %q", component)
				}
				fenced.Fence()
			}
			in.Plan.Arm(c.rule)
			h := host.Intercept(fenced, in, "driver")
			err := c.do(h)
			var pe *fs.PathError
			if !errors.Is(err, c.want) || !errors.As(err, &pe) {
				t.Errorf("got %v, want a PathError with %v", err, c.want)
			}
			if _, err := inner.Stat("/mnt/a"); (err == nil) != c.done {
				t.Errorf("the operation happened: %v, want %v", err == nil, c.done)
			}
			_ = inner.Remove("/mnt/a")
			if left := in.Plan.Unfired(); len(left) > 0 {
				t.Errorf("rules that did not fire: %v", left)
			}
		})
	}
}

// TestFence: nothing of a crashed incarnation takes effect, also not what a
// rule held at the time; and the fence lets go what hangs.
func TestFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := disk.NewMemory()
		defer s.Close()
		must(t, s.Create("v", 32<<20))
		inner := host.NewMemory(host.MemoryConfig{Name: "n"})
		defer inner.Close()
		must(t, inner.AttachDisk(context.Background(), wwn("v"), must1(s.Open("v"))(t)))
		for _, do := range []fault.Action{fault.NewGate(), fault.Hang(), fault.Delay(time.Hour)} {
			in := &fault.Interceptor{Ledger: &ledger.Ledger{}, Plan: &fault.Plan{}}
			fenced := host.Fence(inner)
			h := host.Intercept(fenced, in, "driver")
			in.Plan.Arm(fault.Rule{Op: "MkdirAll", Do: do})
			in.Plan.Arm(fault.Rule{Op: "AttachDisk", Do: do})
			errs := make(chan error, 2)
			go func() { errs <- h.MkdirAll("/mnt/late", 0o700) }()
			go func() {
				errs <- h.AttachDisk(context.Background(), wwn("w"), must1(s.Open("v"))(t))
			}()
			synctest.Wait()
			start := time.Now()
			fenced.Fence()
			for range 2 {
				if err := <-errs; !errors.Is(err, host.ErrFenced) {
					t.Errorf("%v: held call: %v", do, err)
				}
			}
			if time.Since(start) > 0 {
				t.Errorf("%v: let go after %v", do, time.Since(start))
			}
			in.Close()
			if _, err := inner.Stat("/mnt/late"); !errors.Is(err, fs.ErrNotExist) {
				t.Error("a dead incarnation made a directory")
			}
			if len(inner.Disks()) != 1 {
				t.Error("a dead incarnation attached a disk")
			}
		}
	})
	// Every operation of the interface.
	w := memoryWorld(t)
	inner := w.node(t)
	w.disk(t, "v", 32<<20)
	dev := w.attach(t, inner, "v")
	img := must1(w.store.Open("v"))(t)
	defer img.Close()
	must(t, inner.WriteFile("/mnt/f", []byte("x"), 0o600))
	f := host.Fence(inner)
	must(t, lifeOfAVolume(t, f, dev))
	cmd := f.Exec().Command("mkfs.ext4", "-F", dev)
	f.Fence()
	ctx := context.Background()
	m := f.Mounter()
	for name, err := range map[string]error{
		"Stat": second(f.Stat("/")), "Lstat": second(f.Lstat("/")), "ReadDir": second(f.ReadDir("/")),
		"ReadFile": second(f.ReadFile("/mnt/f")), "WriteFile": f.WriteFile("/mnt/f", nil, 0o600),
		"MkdirAll": f.MkdirAll("/mnt/x", 0o700), "Remove": f.Remove("/mnt/f"), "Rename": f.Rename("/mnt/f", "/mnt/g"),
		"Symlink": f.Symlink("f", "/mnt/l"), "Readlink": second(f.Readlink("/mnt/l")), "EvalSymlinks": second(f.EvalSymlinks("/mnt/f")),
		"Chmod": f.Chmod("/mnt/f", 0), "Lchown": f.Lchown("/mnt/f", 1, 1), "Statfs": second(f.Statfs("/")),
		"DeviceSize": second(f.DeviceSize(dev)), "ReadAt": second(f.ReadAt("/mnt/f", 0, 1)), "WriteAt": f.WriteAt("/mnt/f", 0, []byte("y"), true),
		"Hold": second(f.Hold("/mnt/f")), "AttachDisk": f.AttachDisk(ctx, wwn("x"), img), "DetachDisk": f.DetachDisk(ctx, wwn("v")),
		"ResizeDisk": f.ResizeDisk(ctx, wwn("v")), "PowerOff": f.PowerOff(), "PowerOn": f.PowerOn(),
		"Mount": m.Mount(dev, "/mnt", "ext4", nil), "MountSensitive": m.MountSensitive(dev, "/mnt", "ext4", nil, nil),
		"MountSensitiveWithoutSystemd":               m.MountSensitiveWithoutSystemd(dev, "/mnt", "ext4", nil, nil),
		"MountSensitiveWithoutSystemdWithMountFlags": m.MountSensitiveWithoutSystemdWithMountFlags(dev, "/mnt", "ext4", nil, nil, nil),
		"Unmount": m.Unmount("/mnt"), "List": second(m.List()), "IsMountPoint": second(m.IsMountPoint("/")),
		"IsLikelyNotMountPoint": second(m.IsLikelyNotMountPoint("/")), "GetMountRefs": second(m.GetMountRefs("/")),
		"a command made before": cmd.Run(), "Run": f.Exec().Command("sync").Run(), "Output": second(f.Exec().Command("sync").Output()),
		"CombinedOutput": second(f.Exec().Command("sync").CombinedOutput()), "Start": f.Exec().Command("sync").Start(),
		"LookPath": second(f.Exec().LookPath("sync")),
	} {
		if !errors.Is(err, host.ErrFenced) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := must1(inner.ReadFile("/mnt/f"))(t); string(got) != "x" {
		t.Errorf("file is %q", got)
	}
	must(t, lifeOfAVolume(t, host.Fence(inner), dev)) // the next incarnation
}

func second[T any](_ T, err error) error { return err }
