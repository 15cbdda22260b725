package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// built is a mutant that was built.
type built struct {
	root, csilab, sanity string
}

// mutate is the mutant's version of its file.
func (m Mutant) mutate(root string) (string, error) {
	src, err := os.ReadFile(filepath.Join(root, m.File))
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(src), m.Old); n != 1 {
		return "", fmt.Errorf("mutant %s: %s has %d places like this, must have one:\n%s", m.Name, m.File, n, m.Old)
	}
	return strings.Replace(string(src), m.Old, m.New, 1), nil
}

// build builds csilab and the test of csi-sanity with the mutant's file in place
// of the right one: what it shares is compiled once, and the judges only run.
func build(ctx context.Context, root, dir string, m Mutant) (b built, err error) {
	text, err := m.mutate(root)
	if err != nil {
		return b, err
	}
	b = built{root: root, csilab: filepath.Join(dir, "csilab"), sanity: filepath.Join(dir, "sanity.test")}
	file := filepath.Join(dir, filepath.Base(m.File))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return b, err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root, m.File): file}})
	if err != nil {
		return b, err
	}
	replace := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(replace, overlay, 0o600); err != nil {
		return b, err
	}
	for _, what := range [][]string{{"build", "-o", b.csilab, "./cmd/csilab"}, {"test", "-c", "-o", b.sanity, "./driver/sanity"}} {
		cmd := exec.CommandContext(ctx, "go", append([]string{what[0], "-ldflags=-s -w", "-overlay", replace}, what[1:]...)...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			return b, fmt.Errorf("go %s: %w\n%s", strings.Join(what, " "), err, out)
		}
	}
	return b, nil
}
