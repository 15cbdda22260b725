package podgc_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/podgc"
	"github.com/csilab/csilab/sim/kube/store"
)

func TestCollect(t *testing.T) {
	const never = time.Hour
	taint := func(n *corev1.Node) error {
		n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
		return nil
	}
	ready := func(s corev1.ConditionStatus) func(n *corev1.Node) error {
		return func(n *corev1.Node) error {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: s}}
			return nil
		}
	}
	for _, tc := range []struct {
		name        string
		terminating bool
		ready       corev1.ConditionStatus
		taint       bool
		deleteNode  bool
		comesBack   time.Duration
		want        time.Duration
	}{
		{name: "runs", ready: corev1.ConditionTrue, want: never},
		{name: "terminating on a dead node", terminating: true, ready: corev1.ConditionUnknown, want: never},
		{name: "terminating out of service", terminating: true, ready: corev1.ConditionUnknown, taint: true, want: 0},
		{name: "terminating, tainted but ready", terminating: true, ready: corev1.ConditionTrue, taint: true, want: never},
		{name: "not terminating out of service", ready: corev1.ConditionUnknown, taint: true, want: never},
		{name: "orphan", deleteNode: true, want: 40 * time.Second},
		{name: "node comes back", deleteNode: true, comesBack: 39 * time.Second, want: never},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(context.Background())
				s := store.New(1, nil)
				c := s.Client("test")
				done := make(chan error, 1)
				go func() { done <- podgc.New(podgc.Config{Client: s.Client(podgc.Actor)}).Run(ctx) }()
				defer func() {
					cancel()
					if err := <-done; err != nil {
						t.Error(err)
					}
				}()
				must := func(err error) {
					t.Helper()
					if err != nil {
						t.Fatal(err)
					}
				}
				n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
				must(c.Create(ctx, n))
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Spec: corev1.PodSpec{NodeName: "n"}}
				must(c.Create(ctx, p))
				synctest.Wait()
				_, err := store.ModifyStatus(ctx, c, "", "n", ready(tc.ready))
				must(err)
				if tc.terminating {
					must(c.Delete(ctx, p))
				}
				if tc.taint {
					_, err := store.Modify(ctx, c, "", "n", taint)
					must(err)
				}
				if tc.deleteNode {
					must(c.Delete(ctx, n))
				}
				if tc.comesBack > 0 {
					time.AfterFunc(tc.comesBack, func() { must(c.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})) })
				}
				begin := time.Now()
				wctx, stop := context.WithTimeout(ctx, never)
				defer stop()
				err = c.Wait(wctx, func() (bool, error) {
					_, err := store.Get[corev1.Pod](c, "default", "p")
					return err != nil, nil
				}, "Pod")
				if got := time.Since(begin); got != tc.want || (err != nil) != (tc.want == never) {
					t.Errorf("removed after %v (%v), want %v", got, err, tc.want)
				}
			})
		})
	}
}

func TestTerminatingWithoutANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		s := store.New(1, nil)
		c := s.Client("test")
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", Finalizers: []string{"x/y"}}}
		if err := c.Create(ctx, p); err != nil {
			t.Fatal(err)
		}
		if err := c.Delete(ctx, p); err != nil {
			t.Fatal(err)
		}
		if _, err := podgc.New(podgc.Config{Client: c}).Reconcile(ctx, "default/p"); err != nil {
			t.Fatal(err)
		}
		got, err := store.Get[corev1.Pod](c, "default", "p")
		if err != nil || got.Status.Phase != corev1.PodFailed {
			t.Errorf("%v %+v", err, got)
		}
	})
}
