package nodelifecycle_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/nodelifecycle"
	"github.com/csilab/csilab/sim/kube/nodestatus"
	"github.com/csilab/csilab/sim/kube/store"
)

var ctx = context.Background()

type world struct {
	*testing.T
	c     *store.Client
	beats map[string]context.CancelFunc
	// leases says that nodes are alive by their Leases, not by their statuses.
	leases bool
}

func newWorld(t *testing.T, nodes ...string) *world { return newWorldBy(t, false, nodes...) }

func newWorldBy(t *testing.T, leases bool, nodes ...string) *world {
	s := store.New(1, nil)
	w := &world{T: t, c: s.Client("test"), beats: map[string]context.CancelFunc{}, leases: leases}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		done <- nodelifecycle.New(nodelifecycle.Config{Client: s.Client(nodelifecycle.Actor)}).Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		for _, b := range w.beats {
			b()
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for _, n := range nodes {
		if err := w.c.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n}}); err != nil {
			t.Fatal(err)
		}
		w.alive(n)
	}
	synctest.Wait()
	return w
}

// alive sends a heartbeat now and every ten seconds, until dead.
func (w *world) alive(node string) {
	ctx, cancel := context.WithCancel(ctx)
	w.beats[node] = cancel
	go func() {
		for ctx.Err() == nil {
			if w.leases { // the status stays as it is
				now := metav1.NewMicroTime(time.Now())
				_, err := store.Modify(ctx, w.c, corev1.NamespaceNodeLease, node, func(l *coordinationv1.Lease) error { l.Spec.RenewTime = &now; return nil })
				if err != nil {
					_ = w.c.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: node}, Spec: coordinationv1.LeaseSpec{RenewTime: &now}})
				}
			}
			_, _ = store.ModifyStatus(ctx, w.c, "", node, func(n *corev1.Node) error {
				r := nodestatus.Condition(n, corev1.NodeReady)
				if w.leases && r != nil && r.Status == corev1.ConditionTrue {
					return context.Canceled
				}
				if r == nil {
					n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeReady})
					r = nodestatus.Condition(n, corev1.NodeReady)
				}
				r.Status, r.LastHeartbeatTime = corev1.ConditionTrue, metav1.NewTime(time.Now())
				return nil
			})
			select {
			case <-time.After(10 * time.Second):
			case <-ctx.Done():
			}
		}
	}()
}

func (w *world) dead(nodes ...string) {
	for _, n := range nodes {
		w.beats[n]()
	}
	synctest.Wait()
}

func (w *world) check(node string, ready corev1.ConditionStatus, taints ...string) {
	w.Helper()
	synctest.Wait()
	n, err := store.Get[corev1.Node](w.c, "", node)
	if err != nil {
		w.Fatal(err)
	}
	var got []string
	for _, t := range n.Spec.Taints {
		got = append(got, t.Key+":"+string(t.Effect))
	}
	slices.Sort(got)
	slices.Sort(taints)
	if r := nodestatus.Condition(n, corev1.NodeReady); r.Status != ready || !slices.Equal(got, taints) {
		w.Errorf("%s: ready %s, taints %q; want %s, %q", node, r.Status, got, ready, taints)
	}
}

const (
	noSchedule = "node.kubernetes.io/unreachable:NoSchedule"
	noExecute  = "node.kubernetes.io/unreachable:NoExecute"
)

func TestSilentNode(t *testing.T) {
	t.Run("status", func(t *testing.T) { silentNode(t, false) })
	t.Run("lease", func(t *testing.T) { silentNode(t, true) })
}

func silentNode(t *testing.T, leases bool) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorldBy(t, leases, "a", "b")
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Spec: corev1.PodSpec{NodeName: "a"}}
		if err := w.c.Create(ctx, p); err != nil {
			t.Fatal(err)
		}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		if err := w.c.UpdateStatus(ctx, p); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		w.check("a", corev1.ConditionTrue)
		w.dead("a") // its last heartbeat was now
		time.Sleep(50*time.Second - 1)
		w.check("a", corev1.ConditionTrue)
		time.Sleep(time.Nanosecond)
		w.check("a", corev1.ConditionUnknown, noSchedule, noExecute)
		w.check("b", corev1.ConditionTrue)
		p, _ = store.Get[corev1.Pod](w.c, "default", "p")
		if p.Status.Conditions[0].Status != corev1.ConditionFalse {
			t.Errorf("pod %+v", p.Status)
		}
		n, _ := store.Get[corev1.Node](w.c, "", "a")
		if r := nodestatus.Condition(n, corev1.NodeReady); r.Reason != "NodeStatusUnknown" || r.Message != "Kubelet stopped posting node status." {
			t.Errorf("%+v", r)
		}
		time.Sleep(time.Hour)
		w.alive("a")
		w.check("a", corev1.ConditionTrue)
	})
}

func TestNotReadyAndCordoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		w.dead("a")
		if _, err := store.ModifyStatus(ctx, w.c, "", "a", func(n *corev1.Node) error {
			n.Status.Conditions[0].Status = corev1.ConditionFalse
			n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(time.Now().Add(time.Second))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Modify(ctx, w.c, "", "a", func(n *corev1.Node) error {
			n.Spec.Unschedulable = true
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "mine", Effect: corev1.TaintEffectNoSchedule})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		w.check("a", corev1.ConditionFalse, "mine:NoSchedule", "node.kubernetes.io/unschedulable:NoSchedule",
			"node.kubernetes.io/not-ready:NoSchedule", "node.kubernetes.io/not-ready:NoExecute")
		time.Sleep(51 * time.Second) // then silence
		w.check("a", corev1.ConditionUnknown, "mine:NoSchedule", "node.kubernetes.io/unschedulable:NoSchedule", noSchedule, noExecute)
	})
}

// When no node is ready the controller distrusts itself: nobody is evicted.
func TestAllNodesSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		w.dead("a")
		time.Sleep(time.Minute)
		w.check("a", corev1.ConditionUnknown, noSchedule, noExecute)
		w.dead("b")
		time.Sleep(time.Minute)
		w.check("a", corev1.ConditionUnknown, noSchedule)
		w.check("b", corev1.ConditionUnknown, noSchedule)
		w.alive("b")
		w.check("b", corev1.ConditionTrue)
		w.check("a", corev1.ConditionUnknown, noSchedule, noExecute)
	})
}

// Nodes of a zone are tainted for eviction one every ten seconds; when more
// than half of them and more than two are down, not at all.
func TestRateOfEvictions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b", "c", "d", "e")
		count := func() (n int) {
			synctest.Wait()
			for _, o := range store.List[corev1.Node](w.c, "") {
				if slices.ContainsFunc(o.Spec.Taints, func(t corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoExecute }) {
					n++
				}
			}
			return n
		}
		w.dead("a", "b")
		time.Sleep(50 * time.Second)
		if n := count(); n != 1 {
			t.Errorf("%d nodes at once, want 1", n)
		}
		time.Sleep(10 * time.Second)
		if n := count(); n != 2 {
			t.Errorf("%d nodes after 10 s, want 2", n)
		}
		w.dead("c")
		time.Sleep(time.Hour)
		w.check("c", corev1.ConditionUnknown, noSchedule) // 3 of 5
		w.alive("a")
		time.Sleep(10 * time.Second)
		w.check("c", corev1.ConditionUnknown, noSchedule, noExecute)
	})
}

func TestNodeThatNeverReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		if err := w.c.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		w.check("b", corev1.ConditionUnknown, noSchedule, noExecute)
	})
}
