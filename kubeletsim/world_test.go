package kubeletsim

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

func testSpec(i int) volumeSpec {
	name := fmt.Sprintf("v%d", i)
	s := foundSpec(name, "d", name, corev1.PersistentVolumeFilesystem)
	s.pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	return s
}

// The world under pods that come and go and operations that end in any way and
// order, with a node that is a truth apart: whatever happens,
// nothing is mounted twice at a time, nothing is unstaged while a pod has it,
// and once all pods are gone and calls succeed, nothing is left.
func TestWorldProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(500*time.Millisecond, 2*time.Minute)
		w.populated = true
		now := time.Unix(0, 0)
		type key struct {
			n   volumeName
			uid string
		}
		staged, published := map[volumeName]bool{}, map[key]bool{} // on the node
		var running []operation
		alive := map[string]*corev1.Pod{}

		decide := func() {
			ops, _ := w.decide(now)
			for _, op := range ops {
				for _, r := range running {
					if r.volume == op.volume && (r.key.pod == "" || op.key.pod == "" || r.key.pod == op.key.pod) {
						t.Fatalf("%s on %v started while %s on %v runs", op.name, op.key, r.name, r.key)
					}
				}
				if op.name == opUnmountDevice {
					for k := range published {
						if k.n == op.volume {
							t.Fatalf("unstage of %s while published to %s", op.volume, k.uid)
						}
					}
				}
				running = append(running, op)
			}
		}
		// finish ends an operation; how: 0 success, 1 final error before, 2 final
		// error after half of it, 3 uncertain without effect, 4 uncertain with effect.
		finish := func(op operation, how int) {
			var err error
			switch {
			case how == 1 || how == 2:
				err = errors.New("final")
			case how > 2:
				err = &uncertainError{"uncertain"}
			}
			effect := how == 0 || how == 4
			switch op.name {
			case opVerifyAttached:
				if how == 0 {
					w.attached(op.volume, op.spec, attachable, "")
					w.initSize(op.volume, op.size)
				}
			case opMount:
				if w.deviceState(op.volume) != mounted && how != 2 {
					if effect {
						staged[op.volume] = true
					}
					if how == 1 { // kubelet takes a final error for "not staged" (operation_generator.go:685)
						delete(staged, op.volume)
					}
					if err != nil {
						w.deviceFailed(op.volume, "", "/stage", err)
						break
					}
					w.setDevice(op.volume, mounted, "", "/stage")
				} else if w.deviceState(op.volume) != mounted {
					staged[op.volume] = true
					w.setDevice(op.volume, mounted, "", "/stage")
				}
				if effect {
					published[key{op.volume, op.uid}] = true
				}
				if how == 1 || how == 2 { // and for "not published" (operation_generator.go:712)
					delete(published, key{op.volume, op.uid})
				}
				if err != nil {
					w.podFailed(op.volume, op.uid, op.spec, err)
				} else {
					w.setPod(op.volume, op.uid, op.spec, mounted)
				}
			case opUnmount:
				if effect {
					delete(published, key{op.volume, op.uid})
				}
				if err != nil {
					w.setPod(op.volume, op.uid, op.spec, uncertain)
				} else {
					w.dropPod(op.volume, op.uid)
				}
			case opUnmountDevice:
				if effect {
					delete(staged, op.volume)
				}
				if err != nil {
					w.setDevice(op.volume, uncertain, "", "/stage")
				} else {
					w.setDevice(op.volume, notMounted, "", "")
				}
			}
			w.ops.end(op.key, err, now)
		}
		// check: what is on the node is known, and reported in use.
		check := func() {
			inUse := w.inUse()
			for n := range staged {
				if !slices.Contains(inUse, n) {
					t.Fatalf("%s is staged but not in use", n)
				}
			}
			for k := range published {
				if w.podState(k.n, k.uid) == notMounted && !w.ops.running(opKey{volume: k.n}) && !w.ops.runningFor(k.uid, k.n) {
					t.Fatalf("%v is published but unknown", k)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"pod comes": func(t *rapid.T) {
				uid := fmt.Sprintf("p%d", rapid.IntRange(0, 3).Draw(t, "pod"))
				if alive[uid] != nil || !w.gone(uid) {
					t.Skip("there")
				}
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}}
				alive[uid] = p
				for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, 2), 1, 3, rapid.ID).Draw(t, "volumes") {
					w.want(p, fmt.Sprint(i), testSpec(i), true)
				}
			},
			"pod goes": func(t *rapid.T) {
				uid := fmt.Sprintf("p%d", rapid.IntRange(0, 3).Draw(t, "pod"))
				w.unwant(uid)
				delete(alive, uid)
			},
			"status posted": func(*rapid.T) { w.reported(w.inUse()) },
			"attached": func(*rapid.T) {
				for _, n := range w.inUse() {
					w.attachedOnNode[n] = true
				}
			},
			"time": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 5000).Draw(t, "ms")) * time.Millisecond)
			},
			"operation ends": func(t *rapid.T) {
				if len(running) == 0 {
					t.Skip("none")
				}
				i := rapid.IntRange(0, len(running)-1).Draw(t, "which")
				op := running[i]
				running = slices.Delete(running, i, i+1)
				finish(op, rapid.IntRange(0, 4).Draw(t, "how"))
			},
			"decide": func(*rapid.T) { decide() },
			"":       func(*rapid.T) { check() },
		})
		for uid := range alive {
			w.unwant(uid)
		}
		for range 100 {
			now = now.Add(3 * time.Minute)
			decide()
			for _, op := range running {
				finish(op, 0)
			}
			running = nil
		}
		if len(w.actual)+len(w.inUse()) > 0 || len(published) > 0 || len(staged) > 0 {
			t.Fatalf("left: actual %v, staged %v, published %v", w.actual, staged, published)
		}
		if len(w.ops.byVolume) > 0 {
			for v, ops := range w.ops.byVolume {
				for _, p := range ops {
					if p.running {
						t.Fatalf("%s on %s runs for ever", p.name, v)
					}
				}
			}
		}
	})
}

// Nothing is unmounted before all pods are known and the Node object has said
// what is attached; nothing is mounted before use and attachment are in it.
func TestWorldWaits(t *testing.T) {
	now := time.Unix(0, 0)
	names := func(w *world) (out []opName) {
		ops, _ := w.decide(now)
		for _, op := range ops {
			out = append(out, op.name)
		}
		return out
	}
	s := testSpec(0)
	for _, c := range []struct {
		pods bool
		a    attachability
		want []opName
	}{{false, attachUncertain, nil}, {true, attachUncertain, nil}, {false, attachable, nil}, {true, attachable, []opName{opUnmount}}} {
		w := newWorld(time.Second, time.Second)
		w.populated = c.pods
		w.attached(s.unique(), s, c.a, "")
		w.setPod(s.unique(), "p", s, uncertain)
		if got := names(w); !slices.Equal(got, c.want) {
			t.Errorf("pods known %v, attachment %v: %v, want %v", c.pods, c.a, got, c.want)
		}
	}

	w := newWorld(time.Second, time.Second)
	w.populated = true
	for _, step := range []struct {
		what string
		do   func()
		want []opName
	}{
		{"wanted", func() { w.want(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "p"}}, "x", s, true) }, nil},
		{"attached", func() { w.attachedOnNode[s.unique()] = true }, nil},
		{"reported in use", func() { w.reported(w.inUse()) }, []opName{opVerifyAttached}},
		{"again", func() {}, nil},
	} {
		step.do()
		if got := names(w); !slices.Equal(got, step.want) {
			t.Errorf("%s: %v, want %v", step.what, got, step.want)
		}
	}
}

// An operation of another kind is not held up by the back-off of the former,
// and doubles from the start again (nestedpendingoperations.go:173).
func TestBackOffBelongsToTheOperation(t *testing.T) {
	o := newOperations(time.Second, 4*time.Second)
	k := opKey{volume: "v"}
	now := time.Unix(0, 0)
	try := func(name opName, want bool, retry time.Duration) {
		t.Helper()
		ok, at := o.begin(k, name, "p", now)
		if ok != want || !ok && at.Sub(now) != retry {
			t.Fatalf("%s at %v: %v, retry in %v, want %v and %v", name, now.Unix(), ok, at.Sub(now), want, retry)
		}
	}
	fail := func() { o.end(k, errors.New("x"), now) }
	try(opMount, true, 0)
	fail()
	try(opMount, false, time.Second)
	now = now.Add(time.Second)
	try(opMount, true, 0)
	fail()
	try(opMount, false, 2*time.Second)
	// Another operation doesn't wait for that, only for the reconciler to look
	// again: two that fail in turn would take no time otherwise.
	try(opUnmountDevice, false, 200*time.Millisecond)
	now = now.Add(200 * time.Millisecond)
	try(opUnmountDevice, true, 0)
	fail()
	try(opUnmountDevice, false, time.Second)
	now = now.Add(time.Minute)
	try(opUnmountDevice, true, 0)
	o.end(k, nil, now)
	if len(o.byVolume) != 0 {
		t.Errorf("left %v", o.byVolume)
	}
}

func TestOperationsExclude(t *testing.T) {
	for _, c := range []struct {
		a, b opKey
		both bool
	}{
		{opKey{"v", ""}, opKey{"v", ""}, false},
		{opKey{"v", ""}, opKey{"v", "p"}, false},
		{opKey{"v", "p"}, opKey{"v", ""}, false},
		{opKey{"v", "p"}, opKey{"v", "q"}, true},
		{opKey{"v", "p"}, opKey{"v", "p"}, false},
		{opKey{"v", ""}, opKey{"u", ""}, true},
	} {
		o := newOperations(time.Second, time.Second)
		o.begin(c.a, opUnmount, "", time.Unix(0, 0))
		if ok, _ := o.begin(c.b, opMount, "", time.Unix(0, 0)); ok != c.both {
			t.Errorf("%v with %v: %v", c.a, c.b, ok)
		}
	}
}

func FuzzVolumeData(f *testing.F) {
	f.Add([]byte(`{"driverName":"d","volumeHandle":"h"}` + "\n"))
	f.Add([]byte(``))
	f.Add([]byte(`{"driverName":1}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := parseVolumeData("x", b)
		if err == nil {
			_ = foundSpec(d[keySpecVolID], d[keyDriver], d[keyHandle], corev1.PersistentVolumeBlock).unique()
		}
	})
}
