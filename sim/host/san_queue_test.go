package host_test

import (
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/host/scsi"
	"github.com/csilab/csilab/sim/host/scsi/scsitest"
)

// queueRig is a node with a volume v that has a filesystem, over ports of its
// own, and a raw one, w, over others.
type queueRig struct {
	sanNode
	san   *scsitest.SAN
	ports []host.Target // of v
}

const rawDevice = "/dev/mapper/mpathb"

func newQueueRig(t testing.TB, kind string, retry host.NoPathRetry) queueRig {
	t.Helper()
	ports := scsitest.Ports(host.FC, 4)
	const wwpn = "10000000c9000001"
	a := host.Adapters{WWPNs: []string{wwpn}}
	r := queueRig{ports: ports[:2]}
	if kind == "memory" {
		store := disk.NewMemory()
		t.Cleanup(func() { store.Close() })
		r.san = scsitest.New(store, ports...)
		r.sanNode = sanNode{host.NewMemory(host.MemoryConfig{Name: "n", Seed: 1, SAN: r.san, Adapters: a, NoPathRetry: retry}), wwpn}
	} else {
		dir := shortTempDir(t)
		store := must1(disk.NewFiles(filepath.Join(dir, "disks")))(t)
		t.Cleanup(func() { store.Close() })
		r.san = scsitest.New(store, ports...)
		r.sanNode = sanNode{newQueueing(t, host.RealConfig{Name: "n", Seed: 1, Dir: filepath.Join(dir, "n"), SAN: r.san, Adapters: a, NoPathRetry: retry}), wwpn}
	}
	t.Cleanup(func() { must(t, r.Close()) })
	for i, id := range []string{"v", "w"} {
		must(t, r.san.Volume(id, 32<<20))
		must(t, r.san.Export(id, wwpn, i, ports[2*i:2*i+2]...))
	}
	r.scan(t, "-")
	formatAndMount(t, r, "/dev/mapper/mpatha", staging, "ext4")
	return r
}

// cut takes all paths of v away, or gives them back.
func (r queueRig) cut(down bool) {
	for _, p := range r.ports {
		r.san.Down(r.initiator, p, down)
	}
}

// begin runs an operation that may wait.
func begin(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

// waits wants an operation not to have ended.
func waits(t testing.TB, what string, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		t.Fatalf("%s ended with %v", what, err)
	default:
	}
}

func (r queueRig) write(file, text string) <-chan error {
	return begin(func() error { return r.WriteAt(file, 0, []byte(text), true) })
}

// works wants the other volume to be usable.
func (r queueRig) works(t testing.TB) {
	t.Helper()
	must(t, r.WriteAt(rawDevice, 0, []byte("other"), true))
	if got := must1(r.ReadAt(rawDevice, 0, 5))(t); string(got) != "other" {
		t.Errorf("read %q", got)
	}
}

// queueing is what nodes of both kinds do. still is called before something must
// wait still.
func queueing(t *testing.T, kind string, still func()) {
	r := newQueueRig(t, kind, host.RetryForever)
	file := staging + "/f"

	// A path that is back ends the wait, and nobody notices.
	r.cut(true)
	write := r.write(file, "one")
	still()
	r.works(t)
	if got := r.run(t, 0, "multipathd", "show", "maps", "raw", "format", "%n %Q %N %f"); !strings.Contains(got, "mpatha on 0 1 queue_if_no_path") {
		t.Errorf("maps: %s", got)
	}
	if got := r.run(t, 0, "lsblk", "-l", "-n", "-o", "NAME"); !strings.Contains(got, "mpatha") {
		t.Errorf("lsblk: %s", got)
	}
	waits(t, "a write without a path", write)
	if out := r.run(t, 32, "umount", staging); !strings.Contains(out, "busy") {
		t.Errorf("umount of what is written to: %s", out)
	}
	r.cut(false)
	must(t, <-write)
	if got := must1(r.ReadFile(file))(t); string(got) != "one" {
		t.Errorf("read %q", got)
	}

	// An unmount waits for what it has to write. The mount is gone at once.
	must(t, r.WriteAt(file, 0, []byte("two"), false))
	r.cut(true)
	umount := begin(func() error { _, err := r.Exec().Command("umount", staging).CombinedOutput(); return err })
	still()
	waitFor(t, "the mount goes", func() bool { return !strings.Contains(string(must1(r.ReadFile("/proc/mounts"))(t)), staging) })
	r.works(t)
	r.run(t, 1, "multipath", "-f", "mpatha") // in use
	waits(t, "an unmount without a path", umount)
	r.cut(false)
	must(t, <-umount)
	must(t, r.Mounter().Mount("/dev/mapper/mpatha", staging, "ext4", nil))
	if got := must1(r.ReadFile(file))(t); string(got) != "two" {
		t.Errorf("read %q after the unmount had waited", got)
	}

	// Who doesn't want to wait switches it off.
	r.cut(true)
	write = r.write(file, "three")
	still()
	waits(t, "a write without a path", write)
	r.run(t, 0, "dmsetup", "message", "mpatha", "0", "fail_if_no_path")
	if err := <-write; !errors.Is(err, syscall.EIO) {
		t.Errorf("the queue is off, the write got %v", err)
	}
	r.run(t, 0, "umount", staging)
	r.run(t, 0, "multipath", "-f", "mpatha")
}

// waitFor waits for a state of a node.
func waitFor(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); {
		if time.Now().After(end) {
			t.Fatalf("waited for: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestQueueing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { queueing(t, "memory", synctest.Wait) })
}

// TestQueueEnds: a wait is as long as the configuration says, and begins anew
// with the next loss.
func TestQueueEnds(t *testing.T) {
	for _, tc := range []struct {
		retry host.NoPathRetry
		conf  string
		waits time.Duration
	}{
		{host.RetryPassed, "18", 0},
		{host.RetryNever, "fail", 0},
		{3, "3", 3 * scsi.PollingInterval},
	} {
		t.Run(tc.conf, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newQueueRig(t, "memory", tc.retry)
				if conf := r.text(t, "/etc/multipath.conf"); !strings.Contains(conf, "no_path_retry "+tc.conf+"\n") {
					t.Errorf("multipath.conf: %s", conf)
				}
				for range 2 {
					r.cut(true)
					began := time.Now()
					if _, err := r.ReadAt("/dev/mapper/mpatha", 0, 1); !errors.Is(err, syscall.EIO) {
						t.Errorf("read: %v", err)
					}
					if took := time.Since(began); took != tc.waits {
						t.Errorf("it took %v, want %v", took, tc.waits)
					}
					if _, err := r.ReadAt("/dev/mapper/mpatha", 0, 1); !errors.Is(err, syscall.EIO) || time.Since(began) != tc.waits {
						t.Errorf("the next read: %v after %v", err, time.Since(began))
					}
					r.cut(false)
					must1(r.ReadAt("/dev/mapper/mpatha", 0, 1))(t)
				}
			})
		})
	}
}

// TestQueueSwitches: each way to end a wait, or the node.
func TestQueueSwitches(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, r queueRig)
		want error
	}{
		{"disablequeueing map", func(t *testing.T, r queueRig) { r.run(t, 0, "multipathd", "disablequeueing", "map", "mpatha") }, syscall.EIO},
		{"disablequeueing maps", func(t *testing.T, r queueRig) { r.run(t, 0, "multipathd", "disablequeueing", "maps") }, syscall.EIO},
		{"remove --force", func(t *testing.T, r queueRig) { r.run(t, 1, "dmsetup", "remove", "--force", "mpatha") }, syscall.EIO},
		{"power off", func(t *testing.T, r queueRig) { must(t, r.PowerOff()) }, host.ErrOff},
		{"close", func(t *testing.T, r queueRig) { must(t, r.Close()) }, host.ErrOff},
		{"fail", func(t *testing.T, r queueRig) { r.Host.(*host.Memory).FailQueued() }, syscall.EIO},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newQueueRig(t, "memory", host.RetryForever)
				r.cut(true)
				write := r.write(staging+"/f", "x")
				synctest.Wait()
				waits(t, "a write without a path", write)
				tc.do(t, r)
				if err := <-write; !errors.Is(err, tc.want) {
					t.Errorf("the write got %v, want %v", err, tc.want)
				}
			})
		})
	}
}

// TestSuspendedMap: I/O of a suspended map waits until it is resumed.
func TestSuspendedMap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newQueueRig(t, "memory", host.RetryNever)
		r.run(t, 0, "dmsetup", "suspend", "mpatha")
		write := r.write(staging+"/f", "held")
		synctest.Wait()
		r.works(t)
		waits(t, "a write to a suspended map", write)
		r.run(t, 0, "dmsetup", "resume", "mpatha")
		must(t, <-write)
	})
}
