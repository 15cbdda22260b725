package vcenter

import (
	"context"
	"reflect"
	"sync"

	"github.com/vmware/govmomi/vim25/soap"
)

// causes remembers which call started a task, so that the ledger can say what
// a task was run for. The task's id is known when the call that started it
// returns, which is a moment after the task began: the task waits for it.
type causes struct {
	mu      sync.Mutex
	known   map[string]uint64
	waiting map[string]chan struct{}
}

func newCauses() *causes {
	return &causes{known: map[string]uint64{}, waiting: map[string]chan struct{}{}}
}

// note records the call that a reply belongs to, where it started a task.
func (c *causes) note(res soap.HasFault, seq uint64) {
	if seq == 0 || res.Fault() != nil {
		return
	}
	r := reflect.Indirect(reflect.ValueOf(res)).FieldByName("Res")
	if !r.IsValid() || r.IsNil() {
		return
	}
	val := r.Elem().FieldByName("Returnval")
	if !val.IsValid() {
		return
	}
	task, ok := val.Interface().(ref)
	if !ok || task.Type != "Task" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[task.Value] = seq
	if ch := c.waiting[task.Value]; ch != nil {
		close(ch)
		delete(c.waiting, task.Value)
	}
}

// take gives the call that started a task; 0 when ctx ends before it is known.
func (c *causes) take(ctx context.Context, task string) uint64 {
	for {
		c.mu.Lock()
		if seq, ok := c.known[task]; ok {
			delete(c.known, task)
			c.mu.Unlock()
			return seq
		}
		ch := c.waiting[task]
		if ch == nil {
			ch = make(chan struct{})
			c.waiting[task] = ch
		}
		c.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			return 0
		}
	}
}
