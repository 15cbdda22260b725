package tainteviction_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/kube/tainteviction"
)

func TestEviction(t *testing.T) {
	sec := func(n int64) *int64 { return &n }
	exists := corev1.TolerationOpExists
	unreachable, oos := corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute},
		corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "x", Effect: corev1.TaintEffectNoExecute}
	standard := []corev1.Toleration{{Key: corev1.TaintNodeUnreachable, Operator: exists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: sec(300)}}
	const never = 24 * time.Hour
	for _, tc := range []struct {
		name        string
		tolerations []corev1.Toleration
		taints      []corev1.Taint
		lift        time.Duration // when the taints go away again
		want        time.Duration
	}{
		{"no toleration", nil, []corev1.Taint{unreachable}, 0, 0},
		{"standard", standard, []corev1.Taint{unreachable}, 0, 300 * time.Second},
		{"lifted in time", standard, []corev1.Taint{unreachable}, 299 * time.Second, never},
		{"out of service", standard, []corev1.Taint{unreachable, oos}, 0, 0},
		{"for ever", []corev1.Toleration{{Operator: exists}}, []corev1.Taint{unreachable, oos}, 0, never},
		{"zero seconds", []corev1.Toleration{{Operator: exists, TolerationSeconds: sec(0)}}, []corev1.Taint{unreachable}, 0, 0},
		{"the least of two", append(standard, corev1.Toleration{Key: corev1.TaintNodeOutOfService, Operator: exists, TolerationSeconds: sec(7)}), []corev1.Taint{unreachable, oos}, 0, 7 * time.Second},
		{"NoSchedule", nil, []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectNoSchedule}}, 0, never},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(context.Background())
				s := store.New(1, nil)
				c := s.Client("test")
				done := make(chan error, 1)
				go func() {
					done <- tainteviction.New(tainteviction.Config{Client: s.Client(tainteviction.Actor)}).Run(ctx)
				}()
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
				must(c.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Spec: corev1.PodSpec{NodeName: "n", Tolerations: tc.tolerations}}))
				synctest.Wait()
				n.Spec.Taints = tc.taints
				must(c.Update(ctx, n))
				if tc.lift > 0 {
					time.AfterFunc(tc.lift, func() {
						_, err := store.Modify(ctx, c, "", "n", func(n *corev1.Node) error { n.Spec.Taints = nil; return nil })
						must(err)
					})
				}
				begin := time.Now()
				wctx, stop := context.WithTimeout(ctx, never)
				defer stop()
				err := c.Wait(wctx, func() (bool, error) {
					p, err := store.Get[corev1.Pod](c, "default", "p")
					return err != nil || p.DeletionTimestamp != nil, nil
				}, "Pod")
				if got := time.Since(begin); got != tc.want || (err != nil) != (tc.want == never) {
					t.Errorf("evicted after %v (%v), want %v", got, err, tc.want)
				}
			})
		})
	}
}
