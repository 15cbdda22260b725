package wholefile_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/csilab/csilab/sim/wholefile"
)

func TestNewReplacesNothing(t *testing.T) {
	dir := t.TempDir()
	const n = 20
	paths := make([]string, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			var err error
			paths[i], err = wholefile.New(dir, "run.seed-1", ".ledger.jsonl", func(w io.Writer) error { _, err := fmt.Fprint(w, i); return err })
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i, p := range paths {
		if b, err := os.ReadFile(p); err != nil || string(b) != fmt.Sprint(i) {
			t.Errorf("%s holds %q (%v), want %d", p, b, err, i)
		}
	}
	for _, name := range []string{"run.seed-1.ledger.jsonl", "run.seed-1-2.ledger.jsonl", fmt.Sprintf("run.seed-1-%d.ledger.jsonl", n)} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

func TestNewThatFailsLeavesNothing(t *testing.T) {
	dir, bad := t.TempDir(), errors.New("bad")
	if p, err := wholefile.New(dir, "a", ".txt", func(io.Writer) error { return bad }); !errors.Is(err, bad) || p != "" {
		t.Errorf("%q %v", p, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left %v (%v)", left, err)
	}
}
