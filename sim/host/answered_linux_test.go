package host_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/utils/exec"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/ledger"
)

func init() { host.RegisterChild("asks", asks) }

// asks is a process of a node that runs each command by its link and asks the node
// for it, and prints what it gets in both ways. One that a rule holds is given up
// when a file says that it is held.
func asks(args []string) int {
	held, lines := args[0], args[1:]
	for _, line := range lines {
		args := strings.Fields(line)
		for how, e := range []exec.Interface{exec.New(), host.Answered(exec.New())} {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			if args[0] == "udevadm" {
				go func() {
					for ctx.Err() == nil {
						if _, err := os.Stat(fmt.Sprint(held, how)); err == nil {
							cancel()
						}
						time.Sleep(10 * time.Millisecond)
					}
				}()
			}
			out, err := e.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
			status, exit := 0, exec.ExitError(nil)
			switch {
			case errors.As(err, &exit) && ctx.Err() == nil:
				status = exit.ExitStatus()
			case err != nil:
				status = -1
			}
			fmt.Printf("%d %s: status %d, ended %v, failed %v: %q\n", how, line, status, ctx.Err(), err != nil, out)
			cancel()
		}
	}
	return 0
}

// TestAnswered: a command that is asked for ends as by its link, and the ledger has
// the same of it.
func TestAnswered(t *testing.T) {
	t.Parallel()
	in := &fault.Interceptor{Ledger: &ledger.Ledger{}, Plan: &fault.Plan{}}
	_, _, r := realSANNode(t, host.ISCSI, in)
	in.Plan.Arm(fault.Rule{Hop: ledger.Host, Op: "exec multipath", Do: fault.Error(syscall.EIO)})
	hang := in.Plan.Arm(fault.Rule{Hop: ledger.Host, Op: "exec udevadm", Do: fault.Hang()})
	held := filepath.Join(t.TempDir(), "held")
	commands := []string{
		"iscsiadm -m discovery -t st -p 10.0.0.1 -o new", "iscsiadm -m node", "iscsiadm -m session", "iscsiadm -m bogus", "dmsetup ls", "dmsetup bogus",
		"multipathd show paths format %w", "multipath -ll", "lsblk", "udevadm settle", "blkid /dev/nothing", "mkfs.nothing",
	}
	argv, env, err := host.ChildCommand("asks", append([]string{held}, commands...)...)
	must(t, err)
	var out, errs bytes.Buffer
	proc := must1(r.StartProcess(context.Background(), argv, append(env, "PATH="+os.Getenv("PATH")), &out, &errs))(t)
	ended := make(chan error, 1)
	go func() { ended <- proc.Wait() }()
	for n, done := 0, false; !done; {
		if n < 2 && hang.Fired() > n {
			must(t, os.WriteFile(fmt.Sprint(held, n), nil, 0o644))
			n++
		}
		select {
		case err := <-ended:
			if done = true; err != nil {
				t.Fatalf("%v\n%s%s", err, out.String(), errs.String())
			}
		case <-time.After(10 * time.Millisecond):
		}
	}
	// The node learns a moment later that a command was killed.
	for deadline := time.Now().Add(time.Minute); len(in.Ledger.Open()) > 0 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	got := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(got) != 2*len(commands) {
		t.Fatalf("%d lines for %d commands:\n%s", len(got), len(commands), out.String())
	}
	for i, c := range commands {
		link, asked := strings.TrimPrefix(got[2*i], "0 "), strings.TrimPrefix(got[2*i+1], "1 ")
		if link != asked {
			t.Errorf("%s:\nby the link   %s\nof the node   %s", c, link, asked)
		}
	}
	for want, word := range map[string]string{"status 0": "iscsiadm -m node", "status 21": "iscsiadm -m session", "input/output error": "multipath -ll", "context canceled, failed true": "udevadm settle"} {
		if !strings.Contains(out.String(), word+":") || !strings.Contains(lineOf(got, word), want) {
			t.Errorf("%s has no %q:\n%s", word, want, out.String())
		}
	}
	ends := map[string][]string{}
	for _, e := range in.Ledger.Entries() {
		if e.Hop == ledger.Host {
			k := e.Op + " " + e.Request
			ends[k] = append(ends[k], e.Error)
		}
	}
	for call, errs := range ends {
		if len(errs) != 2 || errs[0] != errs[1] {
			t.Errorf("%s is in the ledger with %q", call, errs)
		}
	}
	if len(ends) != 11 { // all but what there is no program of
		t.Errorf("the ledger has %d commands: %v", len(ends), ends)
	}
}

func lineOf(lines []string, word string) string {
	for _, l := range lines {
		if strings.Contains(l, word) {
			return l
		}
	}
	return ""
}
