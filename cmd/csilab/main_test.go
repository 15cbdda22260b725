package main

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/csilab/csilab/cmd/csilab/cli"
	"github.com/csilab/csilab/sim"
)

func TestMain(m *testing.M) {
	sim.Main()
	testscript.Main(m, map[string]func(){
		"csilab": func() {
			os.Exit(cli.Main(cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, os.Args[1:]))
		},
	})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			// Unix sockets of a lab need a short path: not testscript's own.
			e.Setenv("TMPDIR", os.TempDir())
			e.Setenv("UID", strconv.Itoa(os.Getuid()))
			short, err := os.MkdirTemp("", "csilab-cli")
			if err != nil {
				return err
			}
			e.Setenv("SHORT", filepath.Join(short, "t"))
			e.Defer(func() { os.RemoveAll(short) })
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "waitfile": waitfile, "waitlab": waitlab, "nolab": nolab},
	})
}

// exits CODE PROGRAM ARGS… runs a program and requires its exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARGS…")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := "0"
	if err != nil {
		got = err.Error()
		if e, ok := err.(interface{ ExitCode() int }); ok {
			got = strconv.Itoa(e.ExitCode())
		}
	}
	if got != args[0] {
		ts.Fatalf("exit code %s, want %s\n%s", got, args[0], ts.ReadFile("stderr"))
	}
}

// labs lists the directories of labs below a temporary directory.
func labs(ts *testscript.TestScript, tmp string) []string {
	dirs, err := filepath.Glob(filepath.Join(ts.MkAbs(tmp), "csilab-*", "l[0-9]*"))
	ts.Check(err)
	return dirs
}

// waitlab DIR waits until a lab lives below a temporary directory.
func waitlab(ts *testscript.TestScript, _ bool, args []string) {
	deadline := time.After(30 * time.Second)
	for len(labs(ts, args[0])) == 0 {
		select {
		case <-deadline:
			ts.Fatalf("no lab appeared")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// nolab DIR requires that no lab is left below a temporary directory.
func nolab(ts *testscript.TestScript, _ bool, args []string) {
	if left := labs(ts, args[0]); len(left) > 0 {
		ts.Fatalf("left behind: %v", left)
	}
}

// waitfile FILE waits until a file is there.
func waitfile(ts *testscript.TestScript, _ bool, args []string) {
	deadline := time.After(30 * time.Second)
	for {
		if _, err := os.Stat(ts.MkAbs(args[0])); err == nil {
			return
		}
		select {
		case <-deadline:
			ts.Fatalf("%s did not appear", args[0])
		case <-time.After(10 * time.Millisecond):
		}
	}
}
