package expand_test

import (
	"context"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/expand"
	"github.com/csilab/csilab/sim/kube/store"
)

func TestExpand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		s := store.New(1, nil)
		c := s.Client("test")
		done := make(chan error, 1)
		go func() { done <- expand.Run(ctx, s.Client(expand.Actor), nil) }()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		size := func(n string) corev1.ResourceList {
			return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(n)}
		}
		p := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c"}, Spec: corev1.PersistentVolumeClaimSpec{
			Resources: corev1.VolumeResourceRequirements{Requests: size("1Gi")}}}
		if err := c.Create(ctx, p); err != nil {
			t.Fatal(err)
		}
		p.Status.Phase, p.Status.Capacity = corev1.ClaimBound, size("1Gi")
		if err := c.UpdateStatus(ctx, p); err != nil {
			t.Fatal(err)
		}
		check := func(want int32) {
			t.Helper()
			synctest.Wait()
			n := int32(0)
			for _, e := range store.ListBy[corev1.Event](c, store.EventsByObject, string(p.UID)) {
				if e.Reason == "ExternalExpanding" && e.Message == "waiting for an external controller to expand this PVC" {
					n += e.Count
				}
			}
			if n != want {
				t.Errorf("%d events, want %d", n, want)
			}
		}
		check(0)
		p.Spec.Resources.Requests = size("2Gi")
		if err := c.Update(ctx, p); err != nil {
			t.Fatal(err)
		}
		check(1)
		p.Status.Capacity = size("2Gi")
		if err := c.UpdateStatus(ctx, p); err != nil {
			t.Fatal(err)
		}
		check(1)
	})
}
