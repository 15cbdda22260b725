package store_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

var ctx = context.Background()

func meta(ns, name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: ns, Name: name} }

func claim(name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: meta("default", name), Spec: corev1.PersistentVolumeClaimSpec{
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestConflict(t *testing.T) {
	c := store.New(1, nil).Client("t")
	must(t, c.Create(ctx, claim("a")))
	x, _ := store.Get[corev1.PersistentVolumeClaim](c, "default", "a")
	y := x.DeepCopy()
	x.Labels = map[string]string{"x": "1"}
	must(t, c.Update(ctx, x))
	y.Labels = map[string]string{"y": "1"}
	if err := c.Update(ctx, y); !apierrors.IsConflict(err) {
		t.Fatalf("got %v", err)
	}
	// Modify reads anew.
	if _, err := store.Modify(ctx, c, "default", "a", func(p *corev1.PersistentVolumeClaim) error {
		p.Labels["y"] = "1"
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	z, _ := store.Get[corev1.PersistentVolumeClaim](c, "default", "a")
	if len(z.Labels) != 2 {
		t.Errorf("labels %v", z.Labels)
	}
	// The same name with another uid is another object.
	must(t, c.Delete(ctx, z))
	must(t, c.Create(ctx, claim("a")))
	z.ResourceVersion = ""
	if err := c.Update(ctx, z); !apierrors.IsConflict(err) {
		t.Errorf("update of the former object: %v", err)
	}
	if err := c.Delete(ctx, z); !apierrors.IsConflict(err) {
		t.Errorf("delete of the former object: %v", err)
	}
	if err := c.Create(ctx, claim("a")); !apierrors.IsAlreadyExists(err) {
		t.Errorf("second create: %v", err)
	}
}

func TestStatusAndSpecAreSeparate(t *testing.T) {
	c := store.New(1, nil).Client("t")
	p := claim("a")
	p.Status.Phase = corev1.ClaimBound // a create drops it
	must(t, c.Create(ctx, p))
	if p.Status.Phase != corev1.ClaimPending {
		t.Errorf("phase after create %q", p.Status.Phase)
	}
	p.Status.Phase, p.Spec.VolumeName = corev1.ClaimBound, "v"
	must(t, c.UpdateStatus(ctx, p))
	got, _ := store.Get[corev1.PersistentVolumeClaim](c, "default", "a")
	if got.Status.Phase != corev1.ClaimBound || got.Spec.VolumeName != "" || got.Generation != 1 {
		t.Errorf("after status update: %+v", got)
	}
	got.Status.Phase, got.Spec.VolumeName = corev1.ClaimLost, "v"
	must(t, c.Update(ctx, got))
	got, _ = store.Get[corev1.PersistentVolumeClaim](c, "default", "a")
	if got.Status.Phase != corev1.ClaimBound || got.Spec.VolumeName != "v" || got.Generation != 2 {
		t.Errorf("after update: %+v", got)
	}
	// No change, no new version; also when only a quantity's cached text differs.
	rv := got.ResourceVersion
	q := got.Spec.Resources.Requests[corev1.ResourceStorage]
	_ = q.String()
	got.Spec.Resources.Requests[corev1.ResourceStorage] = q
	must(t, c.Update(ctx, got))
	if got.ResourceVersion != rv {
		t.Errorf("a write without a change made version %s of %s", got.ResourceVersion, rv)
	}
	n := &corev1.Node{ObjectMeta: meta("", "n"), Status: corev1.NodeStatus{Phase: "x"}}
	must(t, c.Create(ctx, n))
	if n.Status.Phase != "x" {
		t.Error("a node keeps the status that it registers with")
	}
}

func TestFinalizers(t *testing.T) {
	c := store.New(1, nil).Client("t")
	p := claim("a")
	p.Finalizers = []string{"a/x", "a/y"}
	must(t, c.Create(ctx, p))
	must(t, c.Delete(ctx, p))
	p, err := store.Get[corev1.PersistentVolumeClaim](c, "default", "a")
	must(t, err)
	if p.DeletionTimestamp == nil {
		t.Fatal("not terminating")
	}
	p.Finalizers = append(p.Finalizers, "a/z")
	if err := c.Update(ctx, p); !apierrors.IsInvalid(err) {
		t.Errorf("new finalizer on a terminating object: %v", err)
	}
	p.Finalizers = []string{"a/y"}
	p.DeletionTimestamp = nil // can't be taken back
	must(t, c.Update(ctx, p))
	if p.DeletionTimestamp == nil {
		t.Error("deletion was taken back")
	}
	p.Finalizers = nil
	must(t, c.Update(ctx, p))
	if _, err := store.Get[corev1.PersistentVolumeClaim](c, "default", "a"); !apierrors.IsNotFound(err) {
		t.Errorf("still there: %v", err)
	}
}

func TestPodDeletion(t *testing.T) {
	five, zero := int64(5), int64(0)
	for _, tc := range []struct {
		name  string
		node  string
		grace *int64
		phase corev1.PodPhase
		stays bool
	}{
		{"unscheduled", "", nil, "", false},
		{"default grace", "n", nil, "", true},
		{"five seconds", "n", &five, "", true},
		{"no grace", "n", &zero, "", false},
		{"succeeded", "n", nil, corev1.PodSucceeded, false},
		{"failed", "n", nil, corev1.PodFailed, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := store.New(1, nil).Client("t")
				p := &corev1.Pod{ObjectMeta: meta("default", "p"), Spec: corev1.PodSpec{NodeName: tc.node, TerminationGracePeriodSeconds: tc.grace}}
				must(t, c.Create(ctx, p))
				if tc.phase != "" {
					p.Status.Phase = tc.phase
					must(t, c.UpdateStatus(ctx, p))
				}
				must(t, c.Delete(ctx, p))
				got, err := store.Get[corev1.Pod](c, "default", "p")
				if (err == nil) != tc.stays {
					t.Fatalf("stays %v: %v", tc.stays, err)
				}
				if !tc.stays {
					return
				}
				want := int64(30)
				if tc.grace != nil {
					want = *tc.grace
				}
				if *got.DeletionGracePeriodSeconds != want || time.Until(got.DeletionTimestamp.Time) != time.Duration(want)*time.Second {
					t.Errorf("grace %d until %v", *got.DeletionGracePeriodSeconds, got.DeletionTimestamp)
				}
				must(t, c.Delete(ctx, p)) // again: no change
				got.Labels = map[string]string{"x": "y"}
				must(t, c.Update(ctx, got)) // an update does not end the grace period
				if _, err := store.Get[corev1.Pod](c, "default", "p"); err != nil {
					t.Fatal("an update of a terminating pod removed it")
				}
				must(t, c.DeleteNow(ctx, p))
				if _, err := store.Get[corev1.Pod](c, "default", "p"); !apierrors.IsNotFound(err) {
					t.Errorf("still there: %v", err)
				}
			})
		})
	}
}

func TestBadInput(t *testing.T) {
	c := store.New(1, nil).Client("t")
	for want, o := range map[string]store.Object{
		"cluster-scoped": &corev1.Node{ObjectMeta: meta("x", "n")},
		"metadata.name":  &corev1.Node{},
	} {
		if err := c.Create(ctx, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", want, err)
		}
	}
	if err := c.Update(ctx, claim("none")); !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	if err := c.Delete(ctx, claim("none")); !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	done, cancel := context.WithCancelCause(ctx)
	cause := errors.New("over")
	cancel(cause)
	if err := c.Create(done, claim("a")); !errors.Is(err, cause) {
		t.Error(err)
	}
	c.Fence()
	if err := c.Create(ctx, claim("a")); !errors.Is(err, fault.ErrCrashed) {
		t.Error(err)
	}
}

// The uids depend on seed, kind, name and occurrence, never on the order of
// writes of other objects.
func TestUIDs(t *testing.T) {
	uids := func(seed uint64, order []string) map[string]string {
		c := store.New(seed, nil).Client("t")
		out := map[string]string{}
		for _, n := range order {
			p := claim(n)
			must(t, c.Create(ctx, p))
			out[n] = string(p.UID)
		}
		g := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "g-", Namespace: "default"}}
		must(t, c.Create(ctx, g))
		out["g"] = g.Name
		return out
	}
	x, y, z := uids(1, []string{"a", "b"}), uids(1, []string{"b", "a"}), uids(2, []string{"a", "b"})
	for k := range x {
		if x[k] != y[k] || x[k] == z[k] {
			t.Errorf("%s: %s %s %s", k, x[k], y[k], z[k])
		}
	}
	c := store.New(1, nil).Client("t")
	a := claim("a")
	must(t, c.Create(ctx, a))
	must(t, c.Delete(ctx, a))
	b := claim("a")
	must(t, c.Create(ctx, b))
	if a.UID == b.UID {
		t.Error("the second object of a name has the uid of the first")
	}
}

// A name is the prefix, cut to 58 characters, and five of the API's alphabet. It
// depends on seed, prefix and occurrence only, and one that is given wins.
func TestGeneratedNames(t *testing.T) {
	named := func(c *store.Client, prefix, name string) string {
		t.Helper()
		p := claim(name)
		p.GenerateName = prefix
		must(t, c.Create(ctx, p))
		if p.GenerateName != prefix {
			t.Errorf("generateName %q became %q", prefix, p.GenerateName)
		}
		return p.Name
	}
	long := strings.Repeat("x", 60)
	x, y, z := store.New(1, nil).Client("t"), store.New(1, nil).Client("t"), store.New(2, nil).Client("t")
	named(y, "other-", "")
	for _, prefix := range []string{"g-", "g-", long} {
		name := named(x, prefix, "")
		if want := regexp.MustCompile("^" + prefix[:min(58, len(prefix))] + "[bcdfghjklmnpqrstvwxz2456789]{5}$"); !want.MatchString(name) {
			t.Errorf("name %q from %q", name, prefix)
		}
		if again := named(y, prefix, ""); again != name {
			t.Errorf("same seed, names %s and %s", name, again)
		}
		if other := named(z, prefix, ""); other == name {
			t.Errorf("another seed, the same name %s", name)
		}
	}
	if got := named(x, "g-", "given"); got != "given" {
		t.Errorf("given became %q", got)
	}
	p := claim("")
	if err := x.Create(ctx, p); !apierrors.IsInvalid(err) || err.Error() != `PersistentVolumeClaim "" is invalid: metadata.name: Required value: name or generateName is required` {
		t.Errorf("no name: %v", err)
	}
	p = claim("given")
	p.GenerateName = "g-"
	if err := x.Create(ctx, p); !apierrors.IsAlreadyExists(err) || !strings.HasSuffix(err.Error(), "the server was not able to generate a unique name for the object") {
		t.Errorf("a name that is taken: %v", err)
	}
	// A create that failed leaves no name behind: the next try draws another.
	p = claim("")
	p.GenerateName = "g-"
	lost := &fault.Interceptor{Ledger: &ledger.Ledger{}, Plan: &fault.Plan{}}
	lost.Plan.Arm(fault.Rule{Name: "lost", Hop: ledger.Kube, Phase: fault.After, Nth: 1, Do: fault.Error(errors.New("lost"))})
	c := store.New(1, lost).Client("t")
	if err := c.Create(ctx, p); err == nil || p.Name != "" {
		t.Errorf("a lost reply: %v, name %q", err, p.Name)
	}
	must(t, c.Create(ctx, p))
	if n := len(store.List[corev1.PersistentVolumeClaim](c, "")); n != 2 {
		t.Errorf("%d claims after a reply that was lost and a retry, expected 2", n)
	}
}

func TestEventsAreCounted(t *testing.T) {
	c := store.New(1, nil).Client("binder")
	p := claim("a")
	must(t, c.Create(ctx, p))
	for range 3 {
		c.Event(ctx, p, corev1.EventTypeWarning, "Bad", "so %s", "bad")
	}
	c.Event(ctx, p, corev1.EventTypeWarning, "Bad", "worse")
	evs := store.ListBy[corev1.Event](c, store.EventsByObject, string(p.UID))
	if len(evs) != 2 {
		t.Fatalf("%d events", len(evs))
	}
	counts := []int32{evs[0].Count, evs[1].Count}
	slices.Sort(counts)
	if !slices.Equal(counts, []int32{1, 3}) || evs[0].Source.Component != "binder" || evs[0].InvolvedObject.Kind != "PersistentVolumeClaim" {
		t.Errorf("%v %+v", counts, evs[0])
	}
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := store.New(1, nil).Client("t")
		go func() {
			time.Sleep(time.Minute)
			_ = c.Create(ctx, claim("a"))
		}()
		begin := time.Now()
		must(t, c.Wait(ctx, func() (bool, error) {
			return len(store.List[corev1.PersistentVolumeClaim](c, "")) == 1, nil
		}, "PersistentVolumeClaim"))
		if d := time.Since(begin); d != time.Minute {
			t.Errorf("woke after %v", d)
		}
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := c.Wait(short, func() (bool, error) { return false, nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

// A watch that starts at any time rebuilds exactly the store's content, and
// sees each object's versions in order; the indexes equal a scan.
func TestWatchAndIndexesFollowTheStore(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := store.New(1, nil).Client("t")
		wctx, cancel := context.WithCancel(ctx)
		var ch <-chan store.Event
		watchAt := rapid.IntRange(0, 20).Draw(rt, "watchAt")
		steps := rapid.IntRange(1, 40).Draw(rt, "steps")
		names := rapid.SampledFrom([]string{"a", "b", "c"})
		nodes := rapid.SampledFrom([]string{"", "n1", "n2"})
		ops := rapid.SampledFrom([]string{"create", "update", "status", "delete", "now"})
		for i := range steps {
			if i == watchAt {
				ch = c.Watch(wctx, "Pod")
			}
			name := names.Draw(rt, "name")
			switch ops.Draw(rt, "op") {
			case "create":
				p := &corev1.Pod{ObjectMeta: meta("default", name)}
				p.Spec.NodeName = nodes.Draw(rt, "node")
				if rapid.Bool().Draw(rt, "finalizer") {
					p.Finalizers = []string{"x/y"}
				}
				_ = c.Create(ctx, p)
			case "update":
				_, _ = store.Modify(ctx, c, "default", name, func(p *corev1.Pod) error {
					p.Spec.NodeName = nodes.Draw(rt, "node")
					p.Finalizers = nil
					p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}
					return nil
				})
			case "status":
				_, _ = store.ModifyStatus(ctx, c, "default", name, func(p *corev1.Pod) error { p.Status.Message = fmt.Sprint(i); return nil })
			case "delete":
				_ = c.Delete(ctx, &corev1.Pod{ObjectMeta: meta("default", name)})
			case "now":
				_ = c.DeleteNow(ctx, &corev1.Pod{ObjectMeta: meta("default", name)})
			}
		}
		if ch == nil {
			ch = c.Watch(wctx, "Pod")
		}
		must(t, c.Create(ctx, &corev1.Pod{ObjectMeta: meta("default", "last")}))
		world, versions := map[string]string{}, map[string]string{}
		for e := range ch {
			k := store.Key(e.Object)
			if versions[k] != "" && len(versions[k]) >= len(e.Object.GetResourceVersion()) && versions[k] >= e.Object.GetResourceVersion() {
				rt.Fatalf("%s: version %s after %s", k, e.Object.GetResourceVersion(), versions[k])
			}
			versions[k] = e.Object.GetResourceVersion()
			if _, known := world[k]; known == (e.Type == store.Added) {
				rt.Fatalf("%s of %s, known %v", e.Type, k, known)
			}
			if e.Type == store.Deleted {
				delete(world, k)
			} else {
				world[k] = e.Object.GetResourceVersion()
			}
			if e.Object.GetName() == "last" {
				break
			}
		}
		cancel()
		for range ch {
		}
		pods := store.List[corev1.Pod](c, "")
		if len(pods) != len(world) {
			rt.Fatalf("watch says %v, the store has %d", world, len(pods))
		}
		byNode, byClaim := map[string]int{}, map[string]int{}
		for _, p := range pods {
			if world[store.Key(p)] != p.ResourceVersion {
				rt.Fatalf("%s: watch %s, store %s", p.Name, world[store.Key(p)], p.ResourceVersion)
			}
			byNode[p.Spec.NodeName]++
			for _, k := range store.ClaimKeys(p) {
				byClaim[k]++
			}
		}
		for _, n := range []string{"", "n1", "n2"} {
			if got := len(store.ListBy[corev1.Pod](c, store.PodsByNode, n)); got != byNode[n] {
				rt.Fatalf("index of node %q has %d, want %d", n, got, byNode[n])
			}
		}
		for _, n := range []string{"default/a", "default/b", "default/c"} {
			if got := len(store.ListBy[corev1.Pod](c, store.PodsByClaim, n)); got != byClaim[n] {
				rt.Fatalf("index of claim %q has %d, want %d", n, got, byClaim[n])
			}
		}
	})
}

func TestIndexOfAnotherKindPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	store.ListBy[storagev1.VolumeAttachment](store.New(1, nil).Client("t"), store.PodsByNode, "n")
}

// A watch of some objects hears of those only, of all that happens to them.
func TestWatchOnly(t *testing.T) {
	c := store.New(1, nil).Client("t")
	for _, n := range []string{"a", "b"} {
		must(t, c.Create(ctx, &corev1.Node{ObjectMeta: meta("", n)}))
	}
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ch := c.WatchOnly(wctx, func(o store.Object) bool { return o.GetName() == "b" }, "Node")
	for _, n := range []string{"a", "b"} {
		_, err := store.Modify(ctx, c, "", n, func(n *corev1.Node) error { n.Labels = map[string]string{"x": "y"}; return nil })
		must(t, err)
		must(t, c.Delete(ctx, &corev1.Node{ObjectMeta: meta("", n)}))
	}
	for _, want := range []store.EventType{store.Added, store.Modified, store.Deleted} {
		if e := <-ch; e.Type != want || e.Object.GetName() != "b" {
			t.Errorf("%s %s, want %s b", e.Type, e.Object.GetName(), want)
		}
	}
}
