package store_test

import (
	"context"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/store"
)

// An actor that is cut off knows what it knew, hears nothing, and hears all of
// it once it is back.
func TestPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := store.New(1, nil)
		user, kubelet := s.Client("user"), s.Client("kubelet")
		ctx, cancel := context.WithCancel(context.Background())
		pod := func(name string) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{NodeName: "n"}}
		}
		add := func(name string) {
			t.Helper()
			if err := user.Create(ctx, pod(name)); err != nil {
				t.Fatal(err)
			}
		}
		knows := func(c *store.Client) (n int) {
			n = len(store.List[corev1.Pod](c, ""))
			if by := len(store.ListBy[corev1.Pod](c, store.PodsByNode, "n")); by != n {
				t.Errorf("%d pods by the index, %d in all", by, n)
			}
			return n
		}
		drain := func(ch <-chan store.Event) (out []string) {
			for {
				synctest.Wait()
				select {
				case e := <-ch:
					out = append(out, string(e.Type)+" "+e.Object.GetName())
				default:
					return out
				}
			}
		}
		add("a")
		early := kubelet.Watch(ctx, "Pod")
		if got := drain(early); len(got) != 1 {
			t.Fatalf("events %q", got)
		}

		heal := s.Partition("kubelet")
		add("b")
		if err := user.DeleteNow(ctx, pod("a")); err != nil {
			t.Fatal(err)
		}
		if n := knows(kubelet); n != 1 {
			t.Errorf("the kubelet knows %d pods", n)
		}
		if _, err := store.Get[corev1.Pod](kubelet, "default", "b"); err == nil {
			t.Error("the kubelet knows the new pod")
		}
		if o, err := kubelet.GetLike(pod("a")); err != nil || o.GetName() != "a" {
			t.Errorf("%v, %v", o, err)
		}
		if n := knows(user); n != 1 || s.Has(pod("a")) {
			t.Error("the user sees the old pod")
		}
		late := s.Client("kubelet").Watch(ctx, "Pod") // of its next life
		if got := append(drain(early), drain(late)...); len(got) != 0 {
			t.Errorf("heard %q over a partition", got)
		}

		heal()
		heal()
		if got := drain(early); len(got) != 2 || got[0] != "ADDED b" || got[1] != "DELETED a" {
			t.Errorf("events %q", got)
		}
		if got := drain(late); len(got) != 1 || got[0] != "ADDED b" {
			t.Errorf("events %q of one that began over the partition", got)
		}
		add("c")
		if got := append(drain(early), drain(late)...); len(got) != 2 || knows(kubelet) != 2 {
			t.Errorf("events %q, %d pods", got, knows(kubelet))
		}
		again := s.Partition("kubelet")
		third := kubelet.Watch(ctx, "Pod")
		cancel() // also those that are cut off end
		for range early {
		}
		for range late {
		}
		for range third {
		}
		again()
	})
}
