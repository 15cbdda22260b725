package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// row is a mutant with what its judges said: judge -> what told it.
type row struct {
	Mutant
	caught map[string]string
	err    error
}

func run(ctx context.Context, args []string, out, progress io.Writer) int {
	fl := flag.NewFlagSet("mutants", flag.ContinueOnError)
	focus := fl.String("focus", "", "only mutants whose name matches this regular expression")
	with := fl.String("judges", strings.Join(judgeNames(), ","), "which judges to ask, comma-separated")
	page := fl.String("page", "", "write the table to this file, e.g. docs/mutants.md")
	list := fl.Bool("list", false, "only list the mutants")
	if err := fl.Parse(args); err != nil {
		return 2
	}
	re, err := regexp.Compile(*focus)
	if err != nil {
		fmt.Fprintf(progress, "-focus %q: %v\n", *focus, err)
		return 2
	}
	var ask []judge
	for _, name := range strings.Split(*with, ",") {
		i := slices.IndexFunc(judges, func(j judge) bool { return j.name == name })
		if i < 0 {
			fmt.Fprintf(progress, "-judges %q: allowed are %s\n", name, strings.Join(judgeNames(), ", "))
			return 2
		}
		ask = append(ask, judges[i])
	}
	root, err := projectRoot()
	if err != nil {
		fmt.Fprintln(progress, err)
		return 3
	}
	var rows []row
	escaped := 0
	for _, m := range Mutants {
		if !re.MatchString(m.Name) {
			continue
		}
		if *list {
			fmt.Fprintf(out, "%s: %s\n", m.Name, m.Text)
			continue
		}
		start := time.Now()
		r := row{Mutant: m}
		r.caught, r.err = try(ctx, root, m, ask)
		if ctx.Err() != nil {
			return 130
		}
		rows = append(rows, r)
		// After each, since all take an hour.
		if *page != "" {
			if err := os.WriteFile(*page, []byte(markdown(rows, ask)), 0o644); err != nil {
				fmt.Fprintln(progress, err)
				return 3
			}
		}
		switch {
		case r.err != nil:
			escaped++
			fmt.Fprintf(out, "? %s  %.0fs\n    %v\n", m.Name, time.Since(start).Seconds(), r.err)
		case len(r.caught) == 0:
			escaped++
			fmt.Fprintf(out, "✗ %s  %.0fs: nobody told it\n", m.Name, time.Since(start).Seconds())
		default:
			fmt.Fprintf(out, "✓ %s  %.0fs\n", m.Name, time.Since(start).Seconds())
			for _, j := range ask {
				if why := r.caught[j.name]; why != "" {
					fmt.Fprintf(out, "    %s: %s\n", j.name, why)
				}
			}
		}
	}
	if *list {
		return 0
	}
	fmt.Fprintf(out, "%d caught, %d not\n", len(rows)-escaped, escaped)
	if escaped > 0 || len(rows) == 0 {
		return 1
	}
	return 0
}

// try builds a mutant and asks the judges, on each system that it shows on
// until one tells it.
func try(ctx context.Context, root string, m Mutant, ask []judge) (map[string]string, error) {
	dir, err := os.MkdirTemp("", "csilab-mutant")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	b, err := build(ctx, root, dir, m)
	if err != nil {
		return nil, err
	}
	caught := map[string]string{}
	for _, j := range ask {
		for _, system := range m.Systems {
			why, err := j.ask(ctx, b, m, system)
			if err != nil {
				return nil, fmt.Errorf("%s on %s: %w", j.name, system, err)
			}
			if why != "" {
				caught[j.name] = why
			}
			if why != "" || j.once {
				break
			}
		}
	}
	return caught, nil
}

func projectRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if b, err := os.ReadFile(filepath.Join(d, "go.mod")); err == nil && strings.HasPrefix(string(b), "module github.com/csilab/csilab\n") {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("%s is not in the project", dir)
		}
	}
}

// markdown is the page with the table.
func markdown(rows []row, ask []judge) string {
	var b strings.Builder
	b.WriteString("# Mutants\n\nMade by `make mutants`: drivers and simulators with one deliberate mistake each, and which judge tells them from the right ones. They are built through overlays from `mutants/mutants.go`: nothing of them is in the product, and a test holds that each still fits the code. Each must be told by one judge at least. An empty field: that judge passed the mutant.\n\n| mutant | mistake |")
	for _, j := range ask {
		fmt.Fprintf(&b, " %s |", j.name)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(ask)) + "\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s | %s |", r.Name, r.Text)
		for _, j := range ask {
			why := strings.ReplaceAll(r.caught[j.name], "|", "\\|")
			if r.err != nil {
				why = "not asked"
			}
			fmt.Fprintf(&b, " %s |", why)
		}
		b.WriteString("\n")
	}
	b.WriteString("\nThe judges, each on the systems that the mutant shows on (vSphere, HPE over iSCSI) until one tells it:\n\n")
	for _, j := range ask {
		fmt.Fprintf(&b, "- **%s**: %s\n", j.name, j.text)
	}
	b.WriteString("\nWhat csi-sanity runs is the driver alone, so that it can't tell a wrong control plane.\n\n`go run ./mutants -focus NAME -judges sweep,soak` asks some of them about some mutants. Each scenario has a mutation of its own besides, see [scenarios.md](scenarios.md): `go test ./scenarios -run TestMutants`, those of public incidents alone with `make mutants-incidents`.\n")
	return b.String()
}
