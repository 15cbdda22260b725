package binder_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/csilab/csilab/sim/kube/binder"
	"github.com/csilab/csilab/sim/kube/store"
)

var ctx = context.Background()

const driver = "csi.vsphere.vmware.com"

func claim(name, class, size string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem),
			Resources:  corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}}}}
}

func volume(name, class, size string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		StorageClassName: class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		VolumeMode:                    ptr.To(corev1.PersistentVolumeFilesystem),
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
		PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "h-" + name}}}}
}

func class(name string, mode storagev1.VolumeBindingMode) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: driver, VolumeBindingMode: &mode}
}

// run starts a binder in the bubble over some objects and lets it settle.
func run(t *testing.T, objects ...store.Object) *store.Client {
	t.Helper()
	s := store.New(1, nil)
	c := s.Client("test")
	for _, o := range objects {
		create(t, c, o)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- binder.New(binder.Config{Client: s.Client(binder.Actor)}).Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	return c
}

func create(t *testing.T, c *store.Client, o store.Object) {
	t.Helper()
	if err := c.Create(ctx, o); err != nil {
		t.Fatal(err)
	}
}

func getClaim(t *testing.T, c *store.Client, name string) *corev1.PersistentVolumeClaim {
	t.Helper()
	o, err := store.Get[corev1.PersistentVolumeClaim](c, "default", name)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func getVolume(t *testing.T, c *store.Client, name string) *corev1.PersistentVolume {
	t.Helper()
	o, err := store.Get[corev1.PersistentVolume](c, "", name)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func events(c *store.Client, o store.Object) []string {
	var out []string
	for _, e := range store.ListBy[corev1.Event](c, store.EventsByObject, string(o.GetUID())) {
		out = append(out, e.Reason+": "+e.Message)
	}
	slices.Sort(out)
	return out
}

func wantEvent(t *testing.T, c *store.Client, o store.Object, want string) {
	t.Helper()
	if evs := events(c, o); !slices.ContainsFunc(evs, func(e string) bool { return strings.Contains(e, want) }) {
		t.Errorf("events of %s: %q, want one with %q", o.GetName(), evs, want)
	}
}

func TestStaticVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := run(t, volume("big", "x", "10Gi"), volume("small", "x", "2Gi"), volume("tiny", "x", "1Mi"), volume("other", "y", "1Gi"),
			func() store.Object {
				v := volume("block", "x", "1Gi")
				v.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
				return v
			}(),
			func() store.Object {
				v := volume("many", "x", "1Gi")
				v.Spec.AccessModes = append(v.Spec.AccessModes, corev1.ReadWriteMany)
				return v
			}(),
			claim("a", "x", "1Gi"))
		a := getClaim(t, c, "a")
		if a.Status.Phase != corev1.ClaimBound || a.Spec.VolumeName != "small" || a.Status.Capacity.Storage().String() != "2Gi" {
			t.Fatalf("claim %+v", a)
		}
		v := getVolume(t, c, "small")
		if v.Status.Phase != corev1.VolumeBound || v.Spec.ClaimRef.UID != a.UID || v.Annotations["pv.kubernetes.io/bound-by-controller"] != "yes" {
			t.Errorf("volume %+v", v)
		}
		// Retain: the volume is released, and never bound again by itself.
		if err := c.Delete(ctx, a); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if p := getVolume(t, c, "small").Status.Phase; p != corev1.VolumeReleased {
			t.Errorf("phase %s", p)
		}
		create(t, c, claim("a", "x", "2Gi")) // the same name, another claim
		synctest.Wait()
		if got := getClaim(t, c, "a").Spec.VolumeName; got != "big" {
			t.Errorf("bound to %q", got)
		}
		if _, err := store.Modify(ctx, c, "", "small", func(v *corev1.PersistentVolume) error { v.Labels = map[string]string{"looked": "at"}; return nil }); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if v := getVolume(t, c, "small"); v.Status.Phase != corev1.VolumeReleased || v.Spec.ClaimRef == nil {
			t.Errorf("a claim of the same name took the released volume's place: %+v", v)
		}
		// An administrator makes it available again by removing the claimRef.
		if _, err := store.Modify(ctx, c, "", "small", func(v *corev1.PersistentVolume) error { v.Spec.ClaimRef = nil; return nil }); err != nil {
			t.Fatal(err)
		}
		create(t, c, claim("b", "x", "2Gi"))
		synctest.Wait()
		if got := getClaim(t, c, "b"); got.Spec.VolumeName != "small" || got.Status.Phase != corev1.ClaimBound {
			t.Errorf("claim %+v", got)
		}
	})
}

func TestVolumeThatComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := run(t, claim("a", "none", "1Gi"))
		create(t, c, volume("v", "none", "1Gi"))
		synctest.Wait()
		if got := getClaim(t, c, "a"); got.Spec.VolumeName != "v" {
			t.Errorf("claim %+v", got)
		}
	})
}

func TestPrebound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reserved := volume("reserved", "x", "1Gi")
		reserved.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "a"}
		byName, small, taken := claim("b", "x", "1Gi"), claim("c", "x", "5Gi"), claim("d", "x", "1Gi")
		byName.Spec.VolumeName, small.Spec.VolumeName, taken.Spec.VolumeName = "v", "w", "reserved"
		c := run(t, reserved, volume("v", "x", "1Gi"), volume("w", "x", "1Gi"), byName, small, claim("a", "x", "1Gi"), taken)
		if got := getClaim(t, c, "a"); got.Spec.VolumeName != "reserved" || got.Status.Phase != corev1.ClaimBound {
			t.Errorf("claim %+v", got)
		}
		if v := getVolume(t, c, "reserved"); v.Annotations["pv.kubernetes.io/bound-by-controller"] != "" || v.Spec.ClaimRef.UID == "" {
			t.Errorf("a user's binding is not marked as the controller's: %+v", v)
		}
		if got := getClaim(t, c, "b"); got.Spec.VolumeName != "v" || got.Status.Phase != corev1.ClaimBound {
			t.Errorf("claim %+v", got)
		}
		if got := getClaim(t, c, "c"); got.Status.Phase != corev1.ClaimPending {
			t.Errorf("claim %+v", got)
		}
		wantEvent(t, c, getClaim(t, c, "c"), `VolumeMismatch: Cannot bind to requested volume "w": requested PV is too small`)
		wantEvent(t, c, getClaim(t, c, "d"), `FailedBinding: volume "reserved" already bound to a different claim.`)
	})
}

func TestLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := run(t, volume("v", "x", "1Gi"), claim("a", "x", "1Gi"))
		if err := c.Delete(ctx, getVolume(t, c, "v")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		a := getClaim(t, c, "a")
		if a.Status.Phase != corev1.ClaimLost || len(a.Status.Capacity) != 0 {
			t.Errorf("claim %+v", a.Status)
		}
		wantEvent(t, c, a, "ClaimLost: Bound claim has lost its PersistentVolume. Data on the volume is lost!")
	})
}

func TestProvisioningIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := run(t, class("now", storagev1.VolumeBindingImmediate), claim("a", "now", "1Gi"), claim("b", "missing", "1Gi"), claim("c", "", "1Gi"))
		a := getClaim(t, c, "a")
		if a.Annotations["volume.kubernetes.io/storage-provisioner"] != driver || a.Annotations["volume.beta.kubernetes.io/storage-provisioner"] != driver {
			t.Errorf("annotations %v", a.Annotations)
		}
		wantEvent(t, c, a, "ExternalProvisioning: Waiting for a volume to be created either by the external provisioner '"+driver+"'")
		b := getClaim(t, c, "b")
		wantEvent(t, c, b, `ProvisioningFailed: storageclass.storage.k8s.io "missing" not found`)
		wantEvent(t, c, getClaim(t, c, "c"), "FailedBinding: no persistent volumes available for this claim and no storage class is set")
		if b.Annotations["volume.kubernetes.io/storage-provisioner"] != "" {
			t.Error("asked without a class")
		}
		// The events repeat at each sync.
		time.Sleep(46 * time.Second)
		synctest.Wait()
		evs := store.ListBy[corev1.Event](c, store.EventsByObject, string(b.UID))
		if len(evs) != 1 || evs[0].Count != 4 {
			t.Errorf("%d events, count %d, want 1 and 4", len(evs), evs[0].Count)
		}
		create(t, c, class("missing", storagev1.VolumeBindingImmediate))
		synctest.Wait()
		if getClaim(t, c, "b").Annotations["volume.kubernetes.io/storage-provisioner"] != driver {
			t.Error("the class came, and nothing happened")
		}
		// The provisioner makes the volume.
		v := volume("pvc-1", "now", "2Gi")
		v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
		v.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": driver}
		v.Finalizers = []string{"external-provisioner.volume.kubernetes.io/finalizer"}
		v.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: "default", Name: "a", UID: a.UID}
		create(t, c, v)
		synctest.Wait()
		if got := getClaim(t, c, "a"); got.Status.Phase != corev1.ClaimBound || got.Spec.VolumeName != "pvc-1" || got.Status.Capacity.Storage().String() != "2Gi" {
			t.Errorf("claim %+v", got)
		}
		if p := getVolume(t, c, "pvc-1").Status.Phase; p != corev1.VolumeBound {
			t.Errorf("phase %s", p)
		}
		// The claim goes: Released, and the rest is the provisioner's.
		if err := c.Delete(ctx, getClaim(t, c, "a")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if v := getVolume(t, c, "pvc-1"); v.Status.Phase != corev1.VolumeReleased || v.DeletionTimestamp != nil {
			t.Errorf("volume %+v", v.Status)
		}
	})
}

// A second volume that a provisioner made for a claim that has one is released.
func TestDuplicateIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := run(t, volume("v", "x", "1Gi"), claim("a", "x", "1Gi"))
		a := getClaim(t, c, "a")
		for _, tc := range []struct {
			name  string
			dyn   bool
			phase corev1.PersistentVolumePhase
		}{{"dynamic", true, corev1.VolumeReleased}, {"static", false, corev1.VolumeAvailable}} {
			w := volume(tc.name, "x", "1Gi")
			if tc.dyn {
				w.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": driver}
				w.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
			}
			w.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "a", UID: a.UID}
			create(t, c, w)
			synctest.Wait()
			if got := getVolume(t, c, tc.name); got.Status.Phase != tc.phase {
				t.Errorf("%s: %s, want %s", tc.name, got.Status.Phase, tc.phase)
			}
		}
	})
}

func TestWaitForFirstConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := run(t, class("later", storagev1.VolumeBindingWaitForFirstConsumer), volume("v", "later", "1Gi"), claim("a", "later", "1Gi"))
		a := getClaim(t, c, "a")
		if a.Spec.VolumeName != "" || a.Annotations["volume.kubernetes.io/storage-provisioner"] != "" {
			t.Fatalf("claim %+v", a)
		}
		wantEvent(t, c, a, "WaitForFirstConsumer: waiting for first consumer to be created before binding")
		create(t, c, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Spec: corev1.PodSpec{
			Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "a"}}}}}})
		time.Sleep(16 * time.Second)
		synctest.Wait()
		wantEvent(t, c, a, "WaitForPodScheduled: waiting for pod p to be scheduled")
		if _, err := store.Modify(ctx, c, "default", "a", func(p *corev1.PersistentVolumeClaim) error {
			metav1.SetMetaDataAnnotation(&p.ObjectMeta, "volume.kubernetes.io/selected-node", "n1")
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if getClaim(t, c, "a").Annotations["volume.kubernetes.io/storage-provisioner"] != driver {
			t.Error("not asked for, with a selected node")
		}
	})
}

func TestDefaultClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := claim("a", "", "1Gi")
		p.Spec.StorageClassName = nil
		c := run(t, p)
		d := class("std", storagev1.VolumeBindingImmediate)
		d.Annotations = map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}
		create(t, c, d)
		synctest.Wait()
		if got := getClaim(t, c, "a"); got.Spec.StorageClassName == nil || *got.Spec.StorageClassName != "std" || got.Annotations["volume.kubernetes.io/storage-provisioner"] != driver {
			t.Errorf("claim %+v", got)
		}
	})
}
