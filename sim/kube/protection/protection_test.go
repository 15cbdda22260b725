package protection_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/protection"
	"github.com/csilab/csilab/sim/kube/store"
)

func TestProtection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		s := store.New(1, nil)
		c := s.Client("test")
		done := make(chan error, 2)
		go func() { done <- protection.RunClaims(ctx, s.Client(protection.ClaimActor), nil) }()
		go func() { done <- protection.RunVolumes(ctx, s.Client(protection.VolumeActor), nil) }()
		defer func() {
			cancel()
			for range 2 {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
		}()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		pod := func(name, node string) *corev1.Pod {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{NodeName: node,
				Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}}}
			must(c.Create(ctx, p))
			return p
		}
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c"}}
		volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}}
		must(c.Create(ctx, claim))
		must(c.Create(ctx, volume))
		synctest.Wait()
		claim, err := store.Get[corev1.PersistentVolumeClaim](c, "default", "c")
		must(err)
		volume, err = store.Get[corev1.PersistentVolume](c, "", "v")
		must(err)
		if !slices.Equal(claim.Finalizers, []string{protection.ClaimFinalizer}) || !slices.Equal(volume.Finalizers, []string{protection.VolumeFinalizer}) {
			t.Fatalf("finalizers %v, %v", claim.Finalizers, volume.Finalizers)
		}
		volume.Status.Phase = corev1.VolumeBound
		must(c.UpdateStatus(ctx, volume))
		pod("unscheduled", "")
		used := pod("used", "n")
		must(c.Delete(ctx, claim))
		must(c.Delete(ctx, volume))
		synctest.Wait()
		there := func() (claim, volume bool) {
			synctest.Wait()
			_, err := store.Get[corev1.PersistentVolumeClaim](c, "default", "c")
			_, err2 := store.Get[corev1.PersistentVolume](c, "", "v")
			return err == nil, err2 == nil
		}
		if c, v := there(); !c || !v {
			t.Fatalf("claim there %v, volume there %v: both are in use", c, v)
		}
		used.Status.Phase = corev1.PodSucceeded // it has ended, but is still there
		must(c.UpdateStatus(ctx, used))
		if c, _ := there(); !c {
			t.Fatal("claim went while a pod of its was there")
		}
		must(c.DeleteNow(ctx, used))
		if c, v := there(); c || !v {
			t.Fatalf("claim there %v, volume there %v", c, v)
		}
		volume, err = store.Get[corev1.PersistentVolume](c, "", "v")
		must(err)
		volume.Status.Phase = corev1.VolumeReleased
		must(c.UpdateStatus(ctx, volume))
		if _, v := there(); v {
			t.Error("the volume is released, but did not go")
		}
	})
}
