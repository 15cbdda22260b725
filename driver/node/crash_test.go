package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"k8s.io/mount-utils"
	"k8s.io/utils/exec"
	"pgregory.net/rapid"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host"
)

// life is what a kubelet does with one volume and one pod.
func life(s nodeServer, c *csi.VolumeCapability, ro bool) []func() error {
	return []func() error{
		func() error { return stage(s, c) },
		func() error { return publish(s, c, target, ro) },
		func() error { return unpublish(s, target) },
		func() error { return unstage(s) },
	}
}

// The driver is killed at each operation that changes the node, before and
// after it. A new one is asked for the same, and then for the reverse.
func TestKilledAtEachStep(t *testing.T) {
	for _, k := range []struct {
		name string
		cap  *csi.VolumeCapability
		ro   bool
	}{
		{"ext4", mounted(multi, "ext4"), false},
		{"xfs", mounted(multi, "xfs"), false},
		{"read-only", mounted(single, "ext4", "noexec"), true},
		{"block", raw(single), false},
	} {
		t.Run(k.name, func(t *testing.T) {
			clean := newRig(t, 512*mib)
			counted := &steps{Memory: clean.host}
			for _, f := range life(clean.service(counted), k.cap, k.ro) {
				clean.must(f())
			}
			t.Logf("steps: %s", strings.Join(counted.log, "; "))
			if want := map[bool]int{false: 8, true: 5}[k.name == "block"]; len(counted.log) < want {
				t.Fatalf("%d steps, expected %d or more: does the host count them?", len(counted.log), want)
			}
			for at := 1; at <= len(counted.log); at++ {
				for _, after := range []bool{false, true} {
					for _, retry := range []bool{true, false} {
						name := fmt.Sprintf("%d %s after=%t retry=%t", at, strings.Fields(counted.log[at-1])[0], after, retry)
						t.Run(name, func(t *testing.T) { killedAt(t, k.cap, k.ro, at, after, retry) })
					}
				}
			}
		})
	}
}

func killedAt(t *testing.T, c *csi.VolumeCapability, ro bool, at int, after, retry bool) {
	r := newRig(t, 512*mib)
	h := &steps{Memory: r.host, last: at, after: after}
	killed := -1
	for i, f := range life(r.service(h), c, ro) {
		if err := f(); err != nil {
			killed = i
			break
		}
	}
	if !h.dead {
		t.Fatal("the step was not reached")
	}
	fresh := life(r.service(r.host), c, ro)
	if killed < 0 {
		killed = len(fresh) // at a step whose error is let pass
	}
	if retry {
		for _, f := range fresh[min(killed, len(fresh)-1):] {
			r.must(f())
		}
		if killed < 2 {
			// The volume is as good as new: a whole life again, with data.
			for i, f := range fresh {
				r.must(f())
				if i == 1 && !ro {
					p := target
					if c.GetMount() != nil {
						p += "/data"
					}
					r.writeSynced(p, "x")
				}
			}
		}
	} else {
		for _, f := range fresh[2:] { // unpublish, unstage
			r.must(f())
		}
	}
	if m := r.mounts(); len(m) != 0 {
		t.Fatalf("left mounted: %v", m)
	}
	if r.exists(target) {
		t.Fatalf("%s still exists", target)
	}
}

// An error at one step (not a crash) leaves the mount table as it was before
// the call, since kubelet takes it for final and does not call the reverse (K40).
func TestFailedStepLeavesNoMount(t *testing.T) {
	for _, command := range []string{"resize2fs", "mount", "blkid", "fsck"} {
		t.Run(command, func(t *testing.T) {
			r := newRig(t, 64*mib)
			v := mounted(multi, "ext4")
			r.must(stage(r, v))
			r.must(unstage(r))
			h := &failing{Memory: r.host, command: command}
			r.code(stage(r.service(h), v), codes.Internal)
			if m := r.mounts(); len(m) != 0 {
				t.Fatalf("left mounted: %v", m)
			}
			r.must(stage(r, v))
		})
	}
}

// A kernel that grows no mounted ext4.
func TestGrowUnmounted(t *testing.T) {
	r := newRig(t, 64*mib)
	v := mounted(multi, "ext4", "noatime")
	s := r.service(&refusing{r.host})
	r.must(stage(s, v))
	r.writeSynced(staging+"/data", "hello")
	r.must(unstage(s))
	r.must(r.disks.Snapshot("disk", "s"))
	r.must(r.disks.Restore("disk", "s", "large", 256*mib))
	r.must(r.host.DetachDisk(context.Background(), wwn))
	r.attach(wwn, "large", 0)
	for range 2 {
		r.must(stage(s, v))
	}
	u, err := r.host.Statfs(staging)
	r.must(err)
	if u.TotalBytes < 200*mib {
		t.Errorf("total %d", u.TotalBytes)
	}
	if got := r.read(staging+"/data", 5); got != "hello" {
		t.Errorf("reads %q", got)
	}
	// Published: nothing is unmounted.
	r.must(publish(s, v, target, false))
	r.grow("large", 512*mib)
	r.must(r.host.ResizeDisk(context.Background(), wwn))
	r.must(stage(s, v))
	_, err = s.NodeExpandVolume(context.Background(), &csi.NodeExpandVolumeRequest{VolumeId: volume, VolumePath: target})
	r.code(err, codes.Internal, "grow")
	if n := len(r.mounts()); n != 2 {
		t.Errorf("%d mounts, want 2", n)
	}
	r.must(unpublish(s, target))
	r.must(stage(s, v))
}

// refusing is a host whose kernel grows no mounted ext4.
type refusing struct{ *host.Memory }

func (h *refusing) Exec() exec.Interface { return refusingExec{h.Memory.Exec(), h} }

type refusingExec struct {
	exec.Interface
	h *refusing
}

func (e refusingExec) Command(cmd string, args ...string) exec.Cmd {
	if cmd == "resize2fs" {
		all, _ := e.h.Mounter().List()
		for _, m := range all {
			if m.Device == args[0] {
				return e.Interface.Command("mkfs.ext4", "/nowhere")
			}
		}
	}
	return e.Interface.Command(cmd, args...)
}

// failing is a host on which one command exits with 4.
type failing struct {
	*host.Memory
	command string
}

type failingExec struct {
	exec.Interface
	command string
}

func (h *failing) Exec() exec.Interface { return failingExec{h.Memory.Exec(), h.command} }

func (h *failing) Mounter() mount.Interface {
	if h.command == "mount" {
		return failingMounter{h.Memory.Mounter()}
	}
	return h.Memory.Mounter()
}

// failingMounter mounts, and says that it failed.
type failingMounter struct{ mount.Interface }

func (m failingMounter) Mount(source, target, fstype string, options []string) error {
	return errors.Join(m.Interface.Mount(source, target, fstype, options), errors.New("no"))
}

func (e failingExec) Command(cmd string, args ...string) exec.Cmd {
	if cmd == e.command {
		return e.Interface.Command("blkid") // usage
	}
	return e.Interface.Command(cmd, args...)
}

// A device that can't be read isn't blank (K34, I4).
func TestNoFormatOfWhatCannotBeRead(t *testing.T) {
	for _, hides := range []bool{false, true} {
		t.Run(fmt.Sprintf("blkid hides errors=%t", hides), func(t *testing.T) {
			r := newRig(t, 64*mib)
			v := mounted(multi, "ext4")
			r.must(stage(r, v))
			r.must(publish(r, v, target, false))
			r.writeSynced(target+"/data", "hello")
			r.must(unpublish(r, target))
			r.must(unstage(r))

			other := host.NewMemory(host.MemoryConfig{Name: "node-2", Seed: 7, BlkidHidesErrors: hides})
			defer other.Close()
			img, err := r.disks.Open("disk")
			r.must(err)
			defer img.Close()
			bad := &unreadable{Image: img, bad: true}
			r.must(other.AttachDisk(context.Background(), wwn, bad))
			s := r.service(other)
			r.code(stage(s, v), codes.Internal)
			if bad.written {
				t.Fatal("the device was written to")
			}
			bad.bad = false
			r.must(stage(s, v))
			r.must(publish(s, v, target, false))
			if b, err := other.ReadFile(target + "/data"); err != nil || string(b) != "hello" {
				t.Fatalf("data is %q, %v", b, err)
			}
		})
	}
}

type unreadable struct {
	disk.Image
	bad, written bool
}

func (u *unreadable) ReadAt(p []byte, off int64) (int, error) {
	if u.bad {
		return 0, syscall.EIO
	}
	return u.Image.ReadAt(p, off)
}

func (u *unreadable) WriteAt(p []byte, off int64) (int, error) {
	u.written = u.written || u.bad
	return u.Image.WriteAt(p, off)
}

// A filesystem with damage is neither mounted nor made anew.
func TestNoFormatOfADamagedFilesystem(t *testing.T) {
	r := newRig(t, 64*mib)
	v := mounted(multi, "ext4")
	r.must(stage(r, v))
	r.must(r.host.WriteAt(staging+"/data", 0, []byte(strings.Repeat("hello", 2000)), true))
	r.must(unstage(r))
	dev := "/dev/disk/by-id/wwn-0x" + wwn
	// Within the superblock, past the magic.
	was, err := r.host.ReadAt(dev, 0, 4096)
	r.must(err)
	at := int64(bytes.LastIndexFunc(was, func(c rune) bool { return c != 0 }))
	r.must(r.host.WriteAt(dev, at, []byte{was[at] ^ 0x10}, true))
	r.code(stage(r, v), codes.Internal)
	now, err := r.host.ReadAt(dev, 0, 4096)
	r.must(err)
	if now[at] != was[at]^0x10 {
		t.Fatal("the superblock was written to")
	}
	r.must(r.host.WriteAt(dev, at, was[at:at+1], true))
	r.must(stage(r, v))
	if got := r.read(staging+"/data", 5); got != "hello" {
		t.Fatalf("reads %q", got)
	}
}

// What blkid calls empty but isn't.
func TestNoFormatOfUnknownData(t *testing.T) {
	for _, off := range []int64{0, 511, 4096, mib - 1} {
		r := newRig(t, 64*mib)
		r.must(r.host.WriteAt("/dev/disk/by-id/wwn-0x"+wwn, off, []byte{1}, true))
		r.code(stage(r, mounted(multi, "ext4")), codes.Internal, fmt.Sprint(off))
	}
}

// A mkfs.ext4 that was killed half way is repeated by who began it, and by
// nobody else: not for another volume, and not once the volume had a filesystem.
func TestInterruptedExt4(t *testing.T) {
	dev := "/dev/disk/by-id/wwn-0x" + wwn
	r := newRig(t, 64*mib)
	v := mounted(multi, "ext4")
	half := r.service(&halfway{r.host, dev})
	r.code(stage(half, v), codes.Internal, "mkfs.ext4")
	if b, err := r.host.ReadAt(dev, 8192, 1); err != nil || b[0] != 1 {
		t.Fatalf("the device has %v, %v where a mkfs has begun", b, err)
	}
	r.must(stage(r, v)) // a new life of the driver
	r.must(r.host.WriteAt(staging+"/data", 0, []byte("hello"), true))
	r.must(unstage(r))
	// All but the superblock of a filesystem that was finished is a user's data.
	r.must(r.host.WriteAt(dev, 0, make([]byte, 4096), true))
	r.must(r.host.WriteAt(dev, 8192, []byte{1}, true))
	r.code(stage(r, v), codes.Internal, "neither blank")
}

// halfway is a host on which mkfs.ext4 is killed half way.
type halfway struct {
	*host.Memory
	device string
}

func (h *halfway) Exec() exec.Interface { return halfwayExec{h.Memory.Exec(), h} }

type halfwayExec struct {
	exec.Interface
	h *halfway
}

func (e halfwayExec) Command(cmd string, args ...string) exec.Cmd {
	if cmd == "mkfs.ext4" {
		_ = e.h.WriteAt(e.h.device, 8192, []byte{1}, true)
		args = []string{"/nowhere"}
	}
	return e.Interface.Command(cmd, args...)
}

func TestInterruptedXFS(t *testing.T) {
	r := newRig(t, 512*mib)
	r.must(stage(r, mounted(multi, "xfs")))
	r.must(unstage(r))
	dev := "/dev/disk/by-id/wwn-0x" + wwn
	head, err := r.host.ReadAt(dev, 0, 4)
	r.must(err)
	if string(head) != "XFSB" {
		t.Skipf("this host's xfs starts with %q, so that it has no flag of mkfs", head)
	}
	r.must(r.host.WriteAt(dev, 126, []byte{1}, true))
	r.must(stage(r, mounted(multi, "xfs")))
}

// Any order of calls, with crashes and disks that are pulled, keeps to the
// rules: nothing else is ever mounted, data stays, and in the end all goes away.
func TestAnyOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := newRig(t, 64*mib)
		v := mounted(multi, "ext4")
		ctx := context.Background()
		s := r.service(r.host)
		present, wrote := true, ""
		n := 0
		rt.Repeat(map[string]func(*rapid.T){
			"stage":    func(*rapid.T) { _ = stage(s, v) },
			"publish":  func(*rapid.T) { _ = publish(s, v, target, false) },
			"publish2": func(*rapid.T) { _ = publish(s, v, target2, rapid.Bool().Draw(rt, "ro")) },
			"unpublish": func(*rapid.T) {
				if err := unpublish(s, target); err != nil {
					rt.Fatalf("unpublish: %v", err)
				}
			},
			"unpublish2": func(*rapid.T) {
				if err := unpublish(s, target2); err != nil {
					rt.Fatalf("unpublish: %v", err)
				}
			},
			"unstage": func(*rapid.T) { _ = unstage(s) },
			"restart": func(*rapid.T) { s = r.service(r.host) },
			"killed": func(rt *rapid.T) {
				h := &steps{Memory: r.host, last: rapid.IntRange(1, 6).Draw(rt, "step"), after: rapid.Bool().Draw(rt, "after")}
				k := r.service(h)
				_ = stage(k, v)
				_ = publish(k, v, target, false)
				_ = unpublish(k, target)
				_ = unstage(k)
			},
			"pull": func(rt *rapid.T) {
				if present {
					if err := r.host.DetachDisk(ctx, wwn); err != nil {
						rt.Fatal(err)
					}
					present = false
				}
			},
			"plug": func(*rapid.T) {
				if !present {
					r.attach(wwn, "disk", 0)
					present = true
				}
			},
			"write": func(rt *rapid.T) {
				if publish(s, v, target, false) != nil {
					return
				}
				n++
				data := fmt.Sprintf("%05d", n)
				if r.host.WriteAt(target+"/data", 0, []byte(data), true) == nil {
					wrote = data
				}
			},
			"": func(rt *rapid.T) {
				for _, m := range r.mounts() {
					if !strings.HasPrefix(m.Device, "/dev/sd") || !slices.Contains([]string{staging, target, target2}, m.Path) {
						rt.Fatalf("mounted: %+v", m)
					}
				}
				if wrote == "" || !present {
					return
				}
				b, err := r.host.ReadFile(target + "/data")
				if err == nil && string(b) != wrote {
					rt.Fatalf("data is %q, want %q", b, wrote)
				}
			},
		})
		if !present {
			r.attach(wwn, "disk", 0)
		}
		s = r.service(r.host)
		for _, f := range []func() error{
			func() error { return unpublish(s, target) },
			func() error { return unpublish(s, target2) },
			func() error { return unstage(s) },
		} {
			if err := f(); err != nil {
				rt.Fatal(err)
			}
		}
		if m := r.mounts(); len(m) != 0 {
			rt.Fatalf("left mounted: %v", m)
		}
		if err := stage(s, v); err != nil {
			rt.Fatal(err)
		}
		if wrote != "" {
			b, err := r.host.ReadFile(staging + "/data")
			if err != nil || string(b) != wrote {
				rt.Fatalf("data is %q (%v), want %q", b, err, wrote)
			}
		}
	})
}
