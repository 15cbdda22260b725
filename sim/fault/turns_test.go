package fault_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

// order starts calls in a given order and says in which they came to pass.
func order(t *testing.T, seed uint64, components []string) (out []string) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		turns := fault.NewTurns(seed, synctest.Wait)
		var given, callers sync.WaitGroup
		given.Go(func() { turns.Run(ctx) })
		in := &fault.Interceptor{Turn: turns.Take}
		busy := false // a second call at the same time would be a race
		for _, c := range components {
			callers.Go(func() {
				for n := range 3 {
					_ = in.Do(ctx, fault.Call{Hop: ledger.Kube, Op: "get", Component: c}, func(context.Context) error {
						if busy {
							t.Error("two calls at once")
						}
						busy = true
						out = append(out, fmt.Sprint(c, n))
						busy = false
						return nil
					})
				}
			})
		}
		callers.Wait()
		cancel()
		given.Wait()
	})
	return out
}

// The order of calls is the seed's, whoever comes first.
func TestTurns(t *testing.T) {
	names := strings.Split("abcdefghij", "")
	first := order(t, 7, names)
	if len(first) != 30 {
		t.Fatal(first)
	}
	for range 20 {
		slices.Reverse(names)
		if again := order(t, 7, names); !slices.Equal(first, again) {
			t.Fatalf("another order:\n%v\n%v", first, again)
		}
	}
	if slices.Equal(first, order(t, 8, names)) {
		t.Error("another seed gave the same order")
	}
}

// A caller that gives up, and one that comes after the end, don't wait.
func TestTurnsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := fault.NewTurns(1, synctest.Wait) // nobody gives turns
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		turns.Take(gone, fault.Call{})
		turns.Run(gone)
		turns.Take(context.Background(), fault.Call{})
	})
}
