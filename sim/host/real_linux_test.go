package host_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/mount-utils"
	"k8s.io/utils/exec"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/ledger"
)

func realSupported() error { return host.RealSupported() }

func newReal(t testing.TB, name, dir string) host.Host {
	t.Helper()
	h, err := host.NewReal(context.Background(), host.RealConfig{Name: name, Seed: 1, Dir: dir})
	must(t, err)
	return h
}

func shortTempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cl")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return dir
}

// Programs that the tests start in nodes.
func init() {
	// look prints what a process of the node sees, and waits to be killed.
	host.RegisterChild("look", func(args []string) int {
		es, _ := os.ReadDir("/dev/disk/by-id")
		serial, _ := os.ReadFile("/sys/class/dmi/id/product_serial")
		fmt.Printf("%d disks, %s", len(es), serial)
		if err := os.WriteFile("/var/lib/kubelet/was-here", []byte("yes"), 0o600); err != nil {
			fmt.Println(err)
			return 1
		}
		if len(args) > 0 && args[0] == "stay" {
			fmt.Println("staying")
			select {}
		}
		return 7
	})
	// stage formats and mounts as a CSI driver does.
	host.RegisterChild("stage", func(args []string) int {
		if err := os.MkdirAll(args[1], 0o750); err != nil {
			fmt.Println(err)
			return 1
		}
		m := mount.NewSafeFormatAndMount(mount.New(""), exec.New())
		if err := m.FormatAndMount(args[0], args[1], "ext4", nil); err != nil {
			fmt.Println(err)
			return 1
		}
		return 0
	})
	// lab is a whole lab that is killed in the middle.
	host.RegisterChild("lab", func(args []string) int {
		if err := lab(args[0]); err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println("ready")
		select {}
	})
}

func lab(dir string) error {
	if _, err := host.LockLab(dir); err != nil {
		return err
	}
	s, err := disk.NewFiles(filepath.Join(dir, "disks"))
	if err != nil {
		return err
	}
	if err := s.Create("v", 32<<20); err != nil {
		return err
	}
	img, err := s.Open("v")
	if err != nil {
		return err
	}
	ctx := context.Background()
	h, err := host.NewReal(ctx, host.RealConfig{Name: "n", Dir: filepath.Join(dir, "n")})
	if err != nil {
		return err
	}
	if err := h.AttachDisk(ctx, wwn("v"), img); err != nil {
		return err
	}
	if err := h.MkdirAll(staging, 0o700); err != nil {
		return err
	}
	if err := mount.NewSafeFormatAndMount(h.Mounter(), h.Exec()).FormatAndMount("/dev/sdb", staging, "ext4", nil); err != nil {
		return err
	}
	// A program that leaves another one behind.
	_, err = h.StartProcess(ctx, []string{"sh", "-c", "setsid sleep 1000 & sleep 1000"}, nil, nil, nil)
	return err
}

// output collects what a process prints and tells when a text is in it.
type output struct {
	r *io.PipeReader
	w *io.PipeWriter
}

func newOutput() *output {
	r, w := io.Pipe()
	return &output{r, w}
}

func (o *output) wait(t testing.TB, text string) string {
	t.Helper()
	var all bytes.Buffer
	b := make([]byte, 1000)
	for !strings.Contains(all.String(), text) {
		n, err := o.r.Read(b)
		all.Write(b[:n])
		if err != nil {
			t.Fatalf("%v before %q in %q", err, text, all.String())
		}
	}
	go io.Copy(io.Discard, o.r)
	t.Cleanup(func() { o.w.Close() })
	return all.String()
}

func realNode(t *testing.T, cfg host.RealConfig) (*world, *host.Real) {
	t.Helper()
	if err := realSupported(); err != nil {
		t.Skip(err)
	}
	dir := shortTempDir(t)
	s := must1(disk.NewFiles(filepath.Join(dir, "disks")))(t)
	t.Cleanup(func() { s.Close() })
	cfg.Name, cfg.Dir = "node-1", filepath.Join(dir, "node-1")
	h := must1(host.NewReal(context.Background(), cfg))(t)
	t.Cleanup(func() { must(t, h.Close()) })
	return &world{kind: "real", store: s, dir: dir}, h
}

// eventually polls for what another process does.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

func TestRealConfig(t *testing.T) {
	if err := realSupported(); err != nil {
		t.Skip(err)
	}
	for _, c := range []struct {
		cfg  host.RealConfig
		want string
	}{
		{host.RealConfig{Dir: "/tmp/x"}, "RealConfig.Name"},
		{host.RealConfig{Name: "n", Dir: "x"}, `RealConfig.Dir "x"`},
		{host.RealConfig{Name: "n", Dir: "/"}, "RealConfig.Dir"},
		{host.RealConfig{Name: "n", Dir: "/tmp/../x"}, "RealConfig.Dir"},
		{host.RealConfig{Name: "n", Dir: "/var/lib/x"}, "below /var/lib"},
	} {
		if _, err := host.NewReal(context.Background(), c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.cfg, err, c.want)
		}
	}
	w, h := realNode(t, host.RealConfig{})
	mem := disk.NewMemory()
	defer mem.Close()
	must(t, mem.Create("m", 4096))
	if err := h.AttachDisk(context.Background(), wwn("m"), must1(mem.Open("m"))(t)); err == nil {
		t.Error("attached an image without a file")
	}
	_ = w
}

func TestProcess(t *testing.T) {
	w, h := realNode(t, host.RealConfig{BIOSUUID: "4237d5c8-1a2b-3c4d-5e6f-708192a3b4c5"})
	w.disk(t, "v", 1<<20)
	w.attach(t, h, "v")
	ctx := context.Background()
	argv, env, err := host.ChildCommand("look")
	must(t, err)
	var out bytes.Buffer
	p := must1(h.StartProcess(ctx, argv, env, &out, &out))(t)
	var exit *osexec.ExitError
	if err := p.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("ended with %v", err)
	}
	if want := "2 disks, VMware-42 37 d5 c8 1a 2b 3c 4d-5e 6f 70 81 92 a3 b4 c5\n"; out.String() != want {
		t.Errorf("the process saw %q, want %q", out.String(), want)
	}
	if b, err := os.ReadFile(filepath.Join(h.SocketRoot(), "was-here")); err != nil || string(b) != "yes" {
		t.Errorf("what the process wrote: %q %v", b, err)
	}
	if _, err := os.Stat("/var/lib/kubelet/was-here"); err == nil {
		t.Error("the process wrote to the machine itself")
	}

	stay := func() *host.Process {
		argv, env, err := host.ChildCommand("look", "stay")
		must(t, err)
		o := newOutput()
		p := must1(h.StartProcess(ctx, argv, env, o.w, nil))(t)
		o.wait(t, "staying")
		return p
	}
	killed := func(p *host.Process) {
		t.Helper()
		var exit *osexec.ExitError
		if err := p.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Errorf("ended with %v", err)
		}
		if err := syscall.Kill(p.Pid(), 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d: %v", p.Pid(), err)
		}
	}
	p = stay()
	p.Kill()
	killed(p)
	p = stay()
	must(t, h.PowerOff())
	killed(p)
	must(t, h.PowerOn())
	// A grandchild that holds the output doesn't keep the power on.
	o := newOutput()
	must1(h.StartProcess(ctx, []string{"sh", "-c", "setsid sleep 1000 & echo up; wait"}, nil, o.w, o.w))(t)
	o.wait(t, "up")
	start := time.Now()
	must(t, h.PowerOff())
	if d := time.Since(start); d > 1900*time.Millisecond {
		t.Errorf("power off took %v", d)
	}
	must(t, h.PowerOn())
	p = stay()
	must(t, h.Close())
	killed(p)
	if _, err := h.StartProcess(ctx, argv, env, nil, nil); !errors.Is(err, host.ErrOff) {
		t.Errorf("start after close: %v", err)
	}
}

func TestCommandsOfProcessesAreIntercepted(t *testing.T) {
	in := &fault.Interceptor{Ledger: &ledger.Ledger{}, Plan: &fault.Plan{}}
	w, h := realNode(t, host.RealConfig{Interceptor: in})
	w.disk(t, "v", 32<<20)
	dev := w.attach(t, h, "v")
	run := func() (string, error) {
		argv, env, err := host.ChildCommand("stage", dev, staging)
		must(t, err)
		var out bytes.Buffer
		p := must1(h.StartProcess(context.Background(), argv, env, &out, &out))(t)
		err = p.Wait()
		return out.String(), err
	}
	before := in.Plan.Arm(fault.Rule{Hop: ledger.Host, Op: "exec mkfs.ext4", Nth: 1, Do: fault.Error(syscall.EIO)})
	if out, err := run(); err == nil {
		t.Errorf("mkfs that a rule refused went through: %s", out)
	}
	if out, err := h.Exec().Command("blkid", "-p", dev).CombinedOutput(); err == nil {
		t.Errorf("there is a filesystem after a mkfs that was refused: %s", out)
	}
	in.Plan.Arm(fault.Rule{Hop: ledger.Host, Op: "exec mkfs.ext4", Nth: 1, Do: fault.Error(exec.CodeExitError{Err: errors.New("exit status 4"), Code: 4})})
	if out, err := run(); err == nil || !strings.Contains(out, "exit status 4") {
		t.Errorf("mkfs that a rule ends with status 4: %s", out)
	}
	after := in.Plan.Arm(fault.Rule{Hop: ledger.Host, Op: "Mount", Phase: fault.After, Nth: 1, Do: fault.Error(syscall.EINTR)})
	if out, err := run(); err == nil {
		t.Errorf("mount whose answer a rule replaced went through: %s", out)
	}
	if !isMount(t, h, staging) {
		t.Error("not mounted, though the rule came after")
	}
	if before.Fired() != 1 || after.Fired() != 1 {
		t.Errorf("rules fired %d and %d times", before.Fired(), after.Fired())
	}
	// Held at a gate while its caller is killed: it never happens.
	must(t, h.Mounter().Unmount(staging))
	in.Plan.Clear()
	gate := fault.NewGate()
	in.Plan.Arm(fault.Rule{Hop: ledger.Host, Op: "Mount", Do: gate})
	argv, env, err := host.ChildCommand("stage", dev, staging)
	must(t, err)
	p := must1(h.StartProcess(context.Background(), argv, env, nil, nil))(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	call := must1(gate.Reached(ctx))(t)
	if call.Component != "driver@node-1" || call.Node != "node-1" || !strings.HasPrefix(call.Request, staging+" source="+dev) {
		t.Errorf("call %+v", call)
	}
	p.Kill()
	<-p.Done()
	eventually(t, "the held call ends", func() bool {
		for _, e := range in.Ledger.Entries() {
			if e.Outcome == ledger.Pending {
				return false
			}
		}
		return true
	})
	gate.Release()
	if isMount(t, h, staging) {
		t.Error("a dead process's mount took effect")
	}
}

// TestKilledLabLeavesNothing: SIGKILL in the middle, then a sweep.
func TestKilledLabLeavesNothing(t *testing.T) {
	if err := realSupported(); err != nil {
		t.Skip(err)
	}
	root := shortTempDir(t)
	dead, alive := filepath.Join(root, "dead"), filepath.Join(root, "alive")
	release := must1(host.LockLab(alive))(t)
	defer release()
	if _, err := host.LockLab(alive); err == nil || !strings.Contains(err.Error(), "lives") {
		t.Errorf("locked twice: %v", err)
	}
	must(t, os.Mkdir(filepath.Join(root, "foreign"), 0o700))
	argv, env, err := host.ChildCommand("lab", dead)
	must(t, err)
	c := osexec.Command(argv[0], argv[1:]...)
	c.Env = env
	o := newOutput()
	c.Stdout, c.Stderr = o.w, o.w
	c.WaitDelay = time.Second
	must(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill() })
	o.wait(t, "ready")
	marked := func() []int { return markedBelow(dead) }
	if removed, err := host.Sweep(root); err != nil || len(removed) != 0 {
		t.Errorf("a sweep touched labs that live: %v %v", removed, err)
	}
	eventually(t, "the lab has its processes", func() bool { return len(marked()) == 3 })
	if len(loopsBelow(dead)) != 1 {
		t.Fatalf("the lab has loop devices %v", loopsBelow(dead))
	}
	must(t, c.Process.Kill())
	_ = c.Wait()
	removed, err := host.Sweep(root)
	if err != nil || len(removed) != 1 || removed[0] != dead {
		t.Errorf("swept %v %v", removed, err)
	}
	if _, err := os.Stat(dead); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the dead lab's directory: %v", err)
	}
	eventually(t, "no process of the dead lab", func() bool { return len(marked()) == 0 })
	eventually(t, "no loop device of the dead lab", func() bool { return len(loopsBelow(dead)) == 0 })
	for _, d := range []string{alive, filepath.Join(root, "foreign")} {
		if _, err := os.Stat(d); err != nil {
			t.Errorf("swept what lives: %v", err)
		}
	}
	if _, err := host.Sweep(filepath.Join(root, "none")); err != nil {
		t.Errorf("sweep of nothing: %v", err)
	}
}

// markedBelow lists the processes of nodes below a directory.
func markedBelow(dir string) (pids []int) {
	es, _ := os.ReadDir("/proc")
	for _, e := range es {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if b, err := os.ReadFile("/proc/" + e.Name() + "/environ"); err == nil && bytes.Contains(b, []byte("CSILAB_HOST_NODE="+dir)) {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// loopsBelow lists the loop devices of files below a directory.
func loopsBelow(dir string) (out []string) {
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(b), dir) {
			out = append(out, f)
		}
	}
	return out
}

// TestLoopDevicesAreFreed: at the detach, or at the unmount that comes later.
func TestLoopDevicesAreFreed(t *testing.T) {
	w, h := realNode(t, host.RealConfig{})
	ctx := context.Background()
	gone := func(when string) {
		t.Helper()
		eventually(t, "no loop device after "+when, func() bool { return len(loopsBelow(w.dir)) == 0 })
	}
	w.disk(t, "v", 32<<20)
	w.attach(t, h, "v")
	if n := len(loopsBelow(w.dir)); n != 1 {
		t.Fatalf("%d loop devices", n)
	}
	must(t, h.DetachDisk(ctx, wwn("v")))
	gone("detach")
	formatAndMount(t, h, w.attach(t, h, "v"), staging, "ext4")
	must(t, h.DetachDisk(ctx, wwn("v")))
	if n := len(loopsBelow(w.dir)); n != 1 {
		t.Fatalf("%d loop devices while it is mounted", n)
	}
	must(t, h.Mounter().Unmount(staging))
	gone("unmount")
	formatAndMount(t, h, w.attach(t, h, "v"), staging, "ext4")
	must(t, h.Close())
	gone("close")
}

// TestStaleLoopWritesNowhere: after a forced detach with a fence the former
// node's writes reach no one.
func TestStaleLoopWritesNowhere(t *testing.T) {
	w, h := realNode(t, host.RealConfig{})
	w.disk(t, "v", 32<<20)
	formatAndMount(t, h, w.attach(t, h, "v"), staging, "ext4")
	must(t, h.WriteAt(staging+"/data", 0, []byte("former"), true))
	must(t, w.store.Fence("v"))
	must(t, h.WriteAt(staging+"/data", 0, []byte("latter"), true)) // the kernel doesn't know
	must(t, h.DetachDisk(context.Background(), wwn("v")))
	wantErrno(t, h.WriteAt(staging+"/data", 0, []byte("latter"), true), syscall.EIO)
	h2 := w.node(t)
	dev := w.attach(t, h2, "v")
	formatAndMount(t, h2, dev, staging, "ext4")
	if got := must1(h2.ReadFile(staging + "/data"))(t); string(got) != "former" {
		t.Errorf("read %q", got)
	}
	must(t, h2.Mounter().Unmount(staging))
	must(t, h.Mounter().Unmount(staging))
}

func BenchmarkRealNode(b *testing.B) {
	if err := realSupported(); err != nil {
		b.Skip(err)
	}
	dir := shortTempDir(b)
	for b.Loop() {
		h := newReal(b, "n", filepath.Join(dir, "n"))
		must(b, h.Close())
	}
}
