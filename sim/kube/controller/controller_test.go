package controller_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/controller"
	"github.com/csilab/csilab/sim/kube/store"
)

func node(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// start runs a controller in the background; stop ends it and gives Run's error.
func start(t *testing.T, c controller.Config) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- controller.Run(ctx, c) }()
	return func() error { cancel(); return <-done }
}

func TestBackoffDoublesAndForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.New(1, nil)
		c := s.Client("test")
		if err := c.Create(context.Background(), node("a")); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		var at []time.Duration
		stop := start(t, controller.Config{Name: "x", Client: c, Kinds: []string{"Node"},
			BaseDelay: time.Second, MaxDelay: 5 * time.Second,
			Reconcile: func(ctx context.Context, key string) (time.Duration, error) {
				at = append(at, time.Since(begin))
				switch len(at) {
				case 6: // success forgets the failures and asks for one more call
					return time.Minute, nil
				case 8:
					return 0, nil
				}
				return 0, errors.New("no")
			}})
		time.Sleep(time.Hour)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		// 1, 2, 4, then the maximum; after the minute the back-off starts at 1 again.
		want := []time.Duration{0, 1, 3, 7, 12, 17, 77, 78}
		if len(at) != len(want) {
			t.Fatalf("calls at %v, want %v s", at, want)
		}
		for i := range want {
			if at[i] != want[i]*time.Second {
				t.Errorf("call %d at %v, want %v", i, at[i], want[i]*time.Second)
			}
		}
	})
}

func TestOneKeyAtATimeAndManyWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.New(1, nil)
		c := s.Client("test")
		for _, n := range []string{"a", "b", "c"} {
			if err := c.Create(context.Background(), node(n)); err != nil {
				t.Fatal(err)
			}
		}
		type ev struct {
			key string
			d   int
		}
		ch := make(chan ev, 100)
		stop := start(t, controller.Config{Name: "x", Client: c, Kinds: []string{"Node"}, Workers: 2,
			Reconcile: func(ctx context.Context, key string) (time.Duration, error) {
				ch <- ev{key, 1}
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
				}
				ch <- ev{key, -1}
				return 0, nil
			}})
		synctest.Wait()
		if _, err := store.Modify[corev1.Node](context.Background(), c, "", "a", func(n *corev1.Node) error {
			n.Labels = map[string]string{"x": "y"}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		_ = stop()
		close(ch)
		active, most, calls := map[string]int{}, 0, map[string]int{}
		for e := range ch {
			active[e.key] += e.d
			if active[e.key] > 1 {
				t.Errorf("%s reconciled twice at once", e.key)
			}
			n := 0
			for _, v := range active {
				n += v
			}
			most = max(most, n)
			if e.d == 1 {
				calls[e.key]++
			}
		}
		if most != 2 {
			t.Errorf("%d at once, want 2", most)
		}
		if calls["a"] != 2 || calls["b"] != 1 || calls["c"] != 1 {
			t.Errorf("calls %v", calls)
		}
	})
}

func TestResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.New(1, nil)
		c := s.Client("test")
		_ = c.Create(context.Background(), node("a"))
		_ = c.Create(context.Background(), node("b"))
		n := map[string]int{}
		stop := start(t, controller.Config{Name: "x", Client: c, Kinds: []string{"Node"}, Resync: time.Minute,
			Reconcile: func(ctx context.Context, key string) (time.Duration, error) { n[key]++; return 0, nil }})
		time.Sleep(90 * time.Second)
		_ = c.Delete(context.Background(), node("b"))
		time.Sleep(2 * time.Minute)
		_ = stop()
		if n["a"] != 4 || n["b"] != 3 { // first, (delete), ticks
			t.Errorf("calls %v", n)
		}
	})
}

// A resync does not fall together with the retry of a key: by chance that would be
// one attempt or two.
func TestResyncApartFromRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.New(1, nil)
		c := s.Client("test")
		_ = c.Create(context.Background(), node("a"))
		begin, at := time.Now(), map[string][]time.Duration{}
		for _, name := range []string{"x", "y"} {
			stop := start(t, controller.Config{Name: name, Client: c, Kinds: []string{"Node"}, Resync: time.Minute,
				Reconcile: func(context.Context, string) (time.Duration, error) {
					at[name] = append(at[name], time.Since(begin))
					return 0, nil
				}})
			time.Sleep(90 * time.Second)
			_ = stop()
			begin = time.Now()
		}
		for name, ts := range at {
			if len(ts) != 2 || ts[1] <= time.Minute || ts[1] >= time.Minute+time.Millisecond {
				t.Errorf("%s is reconciled at %v", name, ts)
			}
		}
		if at["x"][1] == at["y"][1] {
			t.Errorf("both at %v", at["x"][1])
		}
	})
}

func TestFatalAndFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.New(1, nil)
		c := s.Client("test")
		_ = c.Create(context.Background(), node("a"))
		lost := errors.New("connection lost")
		err := controller.Run(context.Background(), controller.Config{Name: "x", Client: c, Kinds: []string{"Node"},
			Reconcile: func(context.Context, string) (time.Duration, error) { return 0, controller.Fatal(lost) }})
		if !errors.Is(err, lost) {
			t.Errorf("got %v", err)
		}
		f := s.Client("test")
		f.Fence()
		err = controller.Run(context.Background(), controller.Config{Name: "x", Client: f, Kinds: []string{"Node"},
			Reconcile: func(ctx context.Context, k string) (time.Duration, error) { return 0, f.Delete(ctx, node(k)) }})
		if !errors.Is(err, fault.ErrCrashed) {
			t.Errorf("got %v", err)
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	if err := controller.Run(context.Background(), controller.Config{Name: "x"}); err == nil {
		t.Error("no error")
	}
}

// A key that an event names twice is reconciled once, whenever a worker begins.
func TestKeyNamedTwice(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			s := store.New(1, nil)
			c := s.Client("test")
			if err := c.Create(context.Background(), node("a")); err != nil {
				t.Fatal(err)
			}
			calls := 0
			stop := start(t, controller.Config{Name: "x", Client: c, Kinds: []string{"Node"},
				Keys: func(store.Event) []string { return []string{"k", "k", "k"} },
				Reconcile: func(context.Context, string) (time.Duration, error) {
					calls++
					runtime.Gosched()
					return 0, nil
				}})
			synctest.Wait()
			if err := stop(); err != nil || calls != 1 {
				t.Fatalf("%d calls, %v", calls, err)
			}
		})
	}
}
