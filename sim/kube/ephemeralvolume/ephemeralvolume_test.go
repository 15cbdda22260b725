package ephemeralvolume_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/ephemeralvolume"
	"github.com/csilab/csilab/sim/kube/garbagecollector"
	"github.com/csilab/csilab/sim/kube/protection"
	"github.com/csilab/csilab/sim/kube/store"
)

// world runs the controllers that an ephemeral volume's claim meets.
type world struct {
	*testing.T
	ctx context.Context
	c   *store.Client
}

func in(t *testing.T, f func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		s := store.New(1, nil)
		done := make(chan error)
		runs := []func() error{
			func() error { return ephemeralvolume.Run(ctx, s.Client(ephemeralvolume.Actor), nil) },
			func() error { return garbagecollector.Run(ctx, s.Client(garbagecollector.Actor), nil) },
			func() error { return protection.RunClaims(ctx, s.Client(protection.ClaimActor), nil) },
		}
		for _, run := range runs {
			go func() { done <- run() }()
		}
		defer func() {
			cancel()
			for range runs {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
		}()
		f(&world{t, ctx, s.Client("test")})
	})
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// claim is the claim of a name, once all is quiet; nil where there is none.
func (w *world) claim(name string) *corev1.PersistentVolumeClaim {
	w.Helper()
	synctest.Wait()
	p, err := store.Get[corev1.PersistentVolumeClaim](w.c, "default", name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	w.must(err)
	return p
}

func (w *world) pod(node string) *corev1.Pod {
	w.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "app"}, Spec: corev1.PodSpec{NodeName: node, Volumes: []corev1.Volume{{
		Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"for": "app"}, Annotations: map[string]string{"why": "scratch"}},
			Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}}}}}}}
	w.must(w.c.Create(w.ctx, p))
	return p
}

func TestClaimOfAPod(t *testing.T) {
	in(t, func(w *world) {
		pod := w.pod("n")
		c := w.claim("app-scratch")
		if c == nil || !metav1.IsControlledBy(c, pod) || c.Labels["for"] != "app" || c.Annotations["why"] != "scratch" || c.Spec.Resources.Requests.Storage().String() != "1Gi" ||
			*c.Spec.VolumeMode != corev1.PersistentVolumeFilesystem || !slices.Contains(c.Finalizers, protection.ClaimFinalizer) {
			t.Fatalf("%+v", c)
		}
		// Used, it stays until its pod is gone.
		w.must(w.c.Delete(w.ctx, c))
		if c = w.claim("app-scratch"); c == nil || c.DeletionTimestamp == nil {
			t.Fatalf("a claim in use that is deleted: %+v", c)
		}
		w.must(w.c.DeleteNow(w.ctx, pod))
		if c = w.claim("app-scratch"); c != nil {
			t.Fatalf("the claim of a pod that is gone: %+v", c)
		}
	})
}

func TestClaimGoesWithItsPod(t *testing.T) {
	in(t, func(w *world) {
		w.must(w.c.DeleteNow(w.ctx, w.pod("n")))
		if c := w.claim("app-scratch"); c != nil {
			t.Errorf("the claim of a pod that is gone: %+v", c)
		}
	})
}

// Before a pod has a node, a claim that is deleted is made again.
func TestClaimIsMadeAgain(t *testing.T) {
	in(t, func(w *world) {
		pod := w.pod("")
		old := w.claim("app-scratch")
		w.must(w.c.Delete(w.ctx, old))
		if c := w.claim("app-scratch"); c == nil || c.UID == old.UID || !metav1.IsControlledBy(c, pod) {
			t.Errorf("%+v", c)
		}
	})
}

// A claim of the name that is not the pod's is left alone, also after the pod.
func TestClaimOfAnother(t *testing.T) {
	in(t, func(w *world) {
		other := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "app-scratch"}}
		w.must(w.c.Create(w.ctx, other))
		pod := w.pod("n")
		c := w.claim("app-scratch")
		if c.UID != other.UID || len(c.OwnerReferences) > 0 {
			t.Errorf("%+v", c)
		}
		events := store.ListBy[corev1.Event](w.c, store.EventsByObject, string(pod.UID))
		if len(events) != 1 || events[0].Type != corev1.EventTypeWarning || events[0].Reason != "FailedBinding" ||
			events[0].Message != "ephemeral volume scratch: PVC default/app-scratch was not created for pod default/app (pod is not owner)" {
			t.Errorf("events %+v", events)
		}
		// It does not count as used by the pod.
		w.must(w.c.Delete(w.ctx, c))
		time.Sleep(time.Hour)
		if c := w.claim("app-scratch"); c == nil || c.UID == other.UID || !metav1.IsControlledBy(c, pod) {
			t.Errorf("after the other claim went: %+v", c)
		}
	})
}

// Of several owners those that are gone are forgotten; an owner that is no pod
// counts as there.
func TestOwners(t *testing.T) {
	in(t, func(w *world) {
		pod := w.pod("")
		own := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}
		gone, set := own, metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "s", UID: "s"}
		gone.UID = "of an earlier pod"
		for name, owners := range map[string][]metav1.OwnerReference{"two": {gone, own}, "none": {gone}, "set": {set}} {
			w.must(w.c.Create(w.ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, OwnerReferences: owners}}))
		}
		if c := w.claim("two"); c == nil || len(c.OwnerReferences) != 1 || c.OwnerReferences[0].UID != pod.UID {
			t.Errorf("two owners, one gone: %+v", c)
		}
		if c := w.claim("none"); c != nil {
			t.Errorf("no owner left: %+v", c)
		}
		w.must(w.c.DeleteNow(w.ctx, pod))
		if c := w.claim("two"); c != nil {
			t.Errorf("its last owner is gone: %+v", c)
		}
		if c := w.claim("set"); c == nil {
			t.Error("the claim of a StatefulSet is gone")
		}
	})
}
