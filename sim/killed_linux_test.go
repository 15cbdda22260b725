package sim_test

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/host"
)

// A lab that is killed can't clean up; the sweep of the next one does: no
// process, mount, loop device or file of it is left.
func TestSweepAfterKill(t *testing.T) {
	if err := host.RealSupported(); err != nil {
		t.Skip(err)
	}
	for _, when := range []string{"it has a disk", "its pod runs"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			root := stateRoot(t)
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), victimRoot+"="+root)
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			out, err := cmd.StderrPipe()
			must(t, err)
			must(t, cmd.Start())
			defer cmd.Process.Kill()
			lines := make(chan string)
			go func() {
				defer close(lines)
				for s := bufio.NewScanner(out); s.Scan(); {
					lines <- s.Text()
				}
			}()
			switch when {
			case "it has a disk":
				within(t, 20*time.Second, "a loop device", func() bool { return len(loops(root)) > 0 })
			default:
				for line := range lines {
					if line == "running" {
						break
					}
					t.Log(line)
				}
			}
			if len(processes(root)) == 0 || len(loops(root)) == 0 {
				t.Fatalf("the victim has processes %v and loop devices %v: the test looks at the wrong place", processes(root), loops(root))
			}
			if when == "its pod runs" && len(mentions("/proc/[0-9]*/environ", "\x00TMPDIR="+root)) == 0 {
				t.Error("the drivers' temporary files are not below the lab's directory")
			}
			must(t, cmd.Process.Kill())
			for range lines {
			}
			_, _ = io.Copy(io.Discard, out)
			_ = cmd.Wait()

			sim.Sweep(sim.Options{Host: "real", StateRoot: root})
			mustBeEmpty(t, root)
			within(t, 5*time.Second, "the end of the victim's loop devices", func() bool { return len(loops(root)) == 0 })
			within(t, 5*time.Second, "the end of the victim's processes", func() bool { return len(processes(root)) == 0 })
			if m := mounts(root); len(m) > 0 {
				t.Errorf("mounts are left: %v", m)
			}
		})
	}
}

// within polls until f is true.
func within(t testing.TB, d time.Duration, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(d); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", d, what)
		}
	}
}

// loops are the loop devices whose file is below root.
func loops(root string) (out []string) {
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(b), root+"/") {
			out = append(out, f)
		}
	}
	return out
}

// processes are those that were started with root in arguments or environment.
func processes(root string) []string { return mentions("/proc/[0-9]*/environ", "="+root) }

// mounts are the mount tables, of any process, with a mount from or to root.
func mounts(root string) []string { return mentions("/proc/[0-9]*/mountinfo", root+"/") }

func mentions(glob, text string) (out []string) {
	files, _ := filepath.Glob(glob)
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), text) {
			out = append(out, f)
		}
	}
	return out
}
