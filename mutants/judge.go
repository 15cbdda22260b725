package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// judge is something that fails when a driver or a simulator is wrong.
type judge struct {
	name, text string
	// ask returns what told the mutant, or "". An error says that it could not
	// be asked.
	ask func(ctx context.Context, b built, m Mutant, system string) (why string, err error)
	// once says that it looks at all systems at a time.
	once bool
}

var judges = []judge{
	{"sanity", "csi-sanity on nodes in memory, all backends, until a spec has failed", sanity, true},
	{"scenario", "all scenarios but sweeps and loads, in virtual time; the first by name that failed is named", scenario, false},
	{"sweep", "a sixteenth of the cells of the flows that the mutant's code is part of, until one has failed", sweep, false},
	{"soak", "one seed of four virtual hours with 15 volumes on 3 nodes", soak, false},
}

func judgeNames() (names []string) {
	for _, j := range judges {
		names = append(names, j.name)
	}
	return names
}

// patience bounds one judge: a mutant may hang.
const patience = 4 * time.Minute

// command runs a program; a status other than 0 is no error.
func command(ctx context.Context, dir, name string, args ...string) (stdout []byte, status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	err = cmd.Run()
	var e *exec.ExitError
	if errors.As(err, &e) && ctx.Err() == nil {
		if s := e.ExitCode(); s == 2 || s == 3 || s < 0 && !strings.Contains(diag.String(), "panic") {
			return out.Bytes(), s, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, diag.Bytes())
		}
		return out.Bytes(), e.ExitCode(), nil
	}
	if ctx.Err() != nil && context.Cause(ctx) == context.DeadlineExceeded {
		return out.Bytes(), -1, nil
	}
	return out.Bytes(), 0, err
}

var failedTest = regexp.MustCompile(`(?m)\[FAIL\] (.*?)\s*$|--- FAIL: (\S+)`)

func sanity(ctx context.Context, b built, _ Mutant, _ string) (string, error) {
	out, status, err := command(ctx, filepath.Join(b.root, "driver/sanity"), "env", "CSILAB_SANITY_NODES=memory", b.sanity, "-test.run", "^TestSanity$", "-ginkgo.fail-fast")
	if err != nil || status == 0 {
		return "", err
	}
	if m := failedTest.FindSubmatch(out); m != nil {
		return strings.TrimSpace(plain(string(m[1]) + string(m[2]))), nil
	}
	return "failed", nil
}

var escapes = regexp.MustCompile("\x1b\\[[0-9;]*m")

func plain(s string) string { return escapes.ReplaceAllString(s, "") }

func scenario(ctx context.Context, b built, _ Mutant, system string) (string, error) {
	out, status, err := command(ctx, b.root, b.csilab, "run", "--time", "bubble", "--timeout", "1h", "--backend", system, "--label", "!sweep && !load", "-o", "json")
	if err != nil || status == 0 {
		return "", err
	}
	var report struct {
		Results []struct{ Scenario, Class string }
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return "it hung or crashed", nil
	}
	first, n := "", 0
	for _, r := range report.Results {
		if r.Class != "passed" && r.Class != "skipped" {
			if n++; first == "" || r.Scenario < first {
				first = r.Scenario
			}
		}
	}
	if n == 0 {
		return "", nil
	}
	if n == 1 {
		return first, nil
	}
	return fmt.Sprintf("%s and %d more", first, n-1), nil
}

func sweep(ctx context.Context, b built, m Mutant, system string) (string, error) {
	args := append(append([]string{"sweep"}, m.Flows...), "--backend", system, "--shard", "1/16", "--stop-after", "1", "-o", "json")
	out, status, err := command(ctx, b.root, b.csilab, args...)
	if err != nil || status == 0 {
		return "", err
	}
	var report struct {
		Parts []struct {
			Flow, Reason string
			Cells        []struct{ ID, State string }
		}
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return "it hung or crashed", nil
	}
	for _, p := range report.Parts {
		if p.Reason != "" {
			return p.Flow + ", with nothing wrong", nil
		}
		for _, c := range p.Cells {
			if c.State == "failed" {
				return p.Flow + ": " + c.ID, nil
			}
		}
	}
	return "", nil
}

func soak(ctx context.Context, b built, _ Mutant, system string) (string, error) {
	out, status, err := command(ctx, b.root, b.csilab, "soak", "--backend", system, "--seed", "3", "--seeds", "1", "--volumes", "15", "--nodes", "3", "--duration", "4h", "--shrink", "0", "-o", "json")
	if err != nil || status == 0 {
		return "", err
	}
	var report struct {
		Results []struct{ Class string }
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return "it hung or crashed", nil
	}
	for _, r := range report.Results {
		if r.Class != "passed" {
			return r.Class, nil
		}
	}
	return "", nil
}
