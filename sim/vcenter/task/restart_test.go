package task_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/vmware/govmomi/simulator"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/task"
)

// A restart forgets all tasks. Work that has begun goes on, work that waits is
// done or not by choice, and the next tasks are as ever.
func TestRestart(t *testing.T) {
	for name, stop := range map[string]bool{"work goes on": false, "what waits is lost": true} {
		t.Run(name, func(t *testing.T) {
			m, _ := bare(t, task.Config{})
			restarts(t, m, stop)
		})
	}
}

func restarts(t *testing.T, m *task.Manager, stop bool) {
	t.Helper()
	begun, finish := make(chan struct{}), make(chan struct{})
	worked := make(chan string, 3)
	start := func(op string, work func(ctx context.Context)) {
		m.Start(nil, task.Job{Call: task.Call{Op: op}, Entity: root, Work: func(ctx context.Context, _ *simulator.Context) (vim.AnyType, error) {
			work(ctx)
			worked <- op
			return nil, nil
		}})
	}
	start("running", func(ctx context.Context) {
		close(begun)
		select {
		case <-finish:
		case <-ctx.Done():
			t.Error("work that had begun was stopped")
		}
	})
	<-begun
	h := m.Hold("waiting")
	start("waiting", func(context.Context) {})
	if _, err := h.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := m.Restart(stop); n != 2 {
		t.Errorf("%d tasks ran", n)
	}
	if n := len(m.List()); n != 0 {
		t.Errorf("%d tasks are known", n)
	}
	close(finish)
	if got := <-worked; got != "running" {
		t.Errorf("%s was done first", got)
	}
	h.Release()
	if !stop {
		if got := <-worked; got != "waiting" {
			t.Errorf("%s was done", got)
		}
	}
	start("next", func(context.Context) {})
	if got := <-worked; got != "next" {
		t.Errorf("%s was done", got)
	}
	m.Wait()
	if l := m.List(); len(l) != 1 || l[0].Op != "next" {
		t.Errorf("tasks %v", l)
	}
	if n := m.Restart(stop); n != 0 {
		t.Errorf("%d tasks ran", n)
	}
}

// A task that was entered right before the restart has not begun: that nothing
// has looked at it yet does not give it another life.
func TestRestartRightAfterAStart(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so that hardly any begins before the restart
	m, _ := bare(t, task.Config{})
	var worked atomic.Int32
	const n = 100
	for range n {
		m.Start(nil, task.Job{Call: task.Call{Op: "late"}, Entity: root, Work: func(context.Context, *simulator.Context) (vim.AnyType, error) {
			worked.Add(1)
			return nil, nil
		}})
		m.Restart(true)
	}
	m.Wait()
	if w := worked.Load(); w > n/2 {
		t.Errorf("%d of %d tasks did their work after the restart", w, n)
	}
}
