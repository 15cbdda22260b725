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
	root, csilab, overlay string
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

// build builds csilab with the mutant's file in place of the right one.
func build(ctx context.Context, root, dir string, m Mutant) (b built, err error) {
	text, err := m.mutate(root)
	if err != nil {
		return b, err
	}
	b = built{root: root, csilab: filepath.Join(dir, "csilab"), overlay: filepath.Join(dir, "overlay.json")}
	file := filepath.Join(dir, filepath.Base(m.File))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return b, err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root, m.File): file}})
	if err != nil {
		return b, err
	}
	if err := os.WriteFile(b.overlay, overlay, 0o600); err != nil {
		return b, err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-overlay", b.overlay, "-o", b.csilab, "./cmd/csilab")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return b, fmt.Errorf("build: %w\n%s", err, out)
	}
	return b, nil
}
