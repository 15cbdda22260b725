package store_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/store"
)

// An Event object goes an hour after it was last written, and who watches hears of
// it; other objects stay.
func TestEventsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := store.New(1, nil)
		c := s.Client("test")
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		if err := c.Create(ctx, n); err != nil {
			t.Fatal(err)
		}
		gone := 0
		events := c.Watch(ctx, "Event")
		go func() {
			for e := range events {
				if e.Type == store.Deleted {
					gone++
				}
			}
		}()
		want := func(count int32, objects int) {
			t.Helper()
			synctest.Wait()
			by := store.ListBy[corev1.Event](c, store.EventsByObject, string(n.UID))
			if all := store.List[corev1.Event](c, ""); len(all) != objects || len(by) != objects {
				t.Fatalf("after %v: %d events, %d by the index, want %d", time.Since(n.CreationTimestamp.Time), len(all), len(by), objects)
			}
			if objects > 0 && by[0].Count != count {
				t.Errorf("counted %d times, want %d", by[0].Count, count)
			}
		}
		say := func() { c.Event(ctx, n, corev1.EventTypeNormal, "Said", "something") }
		say()
		time.Sleep(store.EventTTL - time.Second)
		want(1, 1)
		say() // counted, and kept for another hour
		time.Sleep(store.EventTTL - time.Nanosecond)
		want(2, 1)
		time.Sleep(time.Nanosecond)
		want(0, 0)
		if synctest.Wait(); gone != 1 {
			t.Errorf("heard of %d that went", gone)
		}
		say() // a new one
		want(1, 1)
		time.Sleep(2 * store.EventTTL)
		say()
		want(1, 1)
		if _, err := store.Get[corev1.Node](c, "", "n"); err != nil {
			t.Error(err)
		}
	})
}
