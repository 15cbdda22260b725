package bubble_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/csilab/csilab/sim/bubble"
)

// program runs what a program with bubbles does: this binary, without go test's
// flags.
func TestMain(m *testing.M) {
	if os.Getenv("BUBBLE_PROGRAM") != "" {
		program()
		return
	}
	os.Exit(m.Run())
}

func program() {
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := bubble.Program().Run(context.Background(), aDay); err != nil {
				println("failed:", err.Error())
			}
		})
	}
	wg.Wait()
	println("done")
}

func aDay(ctx context.Context) error {
	select {
	case <-time.After(24 * time.Hour):
	case <-ctx.Done():
	}
	if d := time.Since(bubble.Epoch); d != 24*time.Hour {
		return errors.New("the day took " + d.String())
	}
	return nil
}

// A program has bubbles too, with arguments of its own, and says nothing that
// it does not want to.
func TestProgram(t *testing.T) {
	cmd := exec.Command(os.Args[0], "sweep", "--pairs", "3")
	cmd.Env = append(os.Environ(), "BUBBLE_PROGRAM=1")
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil || stdout.String() != "" || stderr.String() != "done\n" {
		t.Errorf("%v: %q, %q", err, stdout.String(), stderr.String())
	}
}

func TestRun(t *testing.T) {
	r := bubble.In(t)
	if err := r.Run(t.Context(), aDay); err != nil {
		t.Error(err)
	}
	boom := errors.New("boom")
	if err := r.Run(t.Context(), func(context.Context) error { return boom }); err != boom {
		t.Error(err)
	}
	if err := r.Run(t.Context(), func(context.Context) error { panic("boom") }); err == nil || !strings.Contains(err.Error(), "panic: boom") || !strings.Contains(err.Error(), "TestRun") {
		t.Error(err)
	}
}

// What is left behind is named, and the program goes on.
func TestLeftBehind(t *testing.T) {
	err := bubble.In(t).Run(t.Context(), func(context.Context) error { go forever(); return nil })
	if err == nil || !strings.Contains(err.Error(), "bubble_test.forever") || strings.Contains(err.Error(), "TestMain") {
		t.Error(err)
	}
}

func forever() { <-make(chan int) }

// A caller that goes away ends what runs.
func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	boom := errors.New("boom")
	err := bubble.In(t).Run(ctx, func(inner context.Context) error {
		cancel(boom)
		<-inner.Done()
		return context.Cause(inner)
	})
	if err != boom {
		t.Error(err)
	}
	if err := bubble.In(t).Run(ctx, aDay); err != boom {
		t.Error(err)
	}
}
