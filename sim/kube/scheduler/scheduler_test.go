package scheduler_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/csilab/csilab/sim/kube/binder"
	"github.com/csilab/csilab/sim/kube/controller"
	"github.com/csilab/csilab/sim/kube/scheduler"
	"github.com/csilab/csilab/sim/kube/store"
)

var ctx = context.Background()

const (
	driver = "csi.vsphere.vmware.com"
	zone   = "topology.kubernetes.io/zone"
	ann    = "volume.kubernetes.io/selected-node"
)

type world struct {
	*testing.T
	s *store.Store
	c *store.Client

	mu      sync.Mutex
	refuse  map[string]bool // nodes where provisioning fails
	created []string        // claim on node
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, s: store.New(1, nil), refuse: map[string]bool{}}
	w.c = w.s.Client("test")
	w.start(binder.New(binder.Config{Client: w.s.Client(binder.Actor)}).Run)
	w.start(scheduler.New(scheduler.Config{Client: w.s.Client(scheduler.Actor)}).Run)
	w.start(w.provisioner)
	return w
}

func (w *world) start(run func(context.Context) error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	w.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.Error(err)
		}
	})
}

// provisioner makes a volume in the zone of the claim's selected node.
func (w *world) provisioner(ctx context.Context) error {
	c := w.s.Client("csi-provisioner")
	return controller.Run(ctx, controller.Config{Name: "provisioner", Client: c, Kinds: []string{"PersistentVolumeClaim"},
		Reconcile: func(ctx context.Context, key string) (time.Duration, error) {
			ns, name := store.SplitKey(key)
			claim, err := store.Get[corev1.PersistentVolumeClaim](c, ns, name)
			if err != nil || claim.Spec.VolumeName != "" || claim.Annotations["volume.kubernetes.io/storage-provisioner"] != driver {
				return 0, nil
			}
			node := claim.Annotations[ann]
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.refuse[node] {
				delete(claim.Annotations, ann)
				return 0, c.Update(ctx, claim)
			}
			if node == "" {
				if cls, err := store.Get[storagev1.StorageClass](c, "", *claim.Spec.StorageClassName); err != nil || *cls.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer {
					return 0, nil
				}
			}
			pv := volume("pvc-"+name, *claim.Spec.StorageClassName)
			if n, err := store.Get[corev1.Node](c, "", node); err == nil && n.Labels[zone] != "" {
				inZone(pv, n.Labels[zone])
			}
			pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: ns, Name: name, UID: claim.UID}
			if err := c.Create(ctx, pv); err == nil { // else it is there already
				w.created = append(w.created, name+" on "+node)
			}
			return 0, nil
		}})
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) create(objects ...store.Object) {
	w.Helper()
	for _, o := range objects {
		w.must(w.c.Create(ctx, o))
	}
}

func node(name string, labels ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	for i := 0; i < len(labels); i += 2 {
		n.Labels[labels[i]] = labels[i+1]
	}
	return n
}

func volume(name, class string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		StorageClassName: class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteOncePod},
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
		PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "h-" + name}}}}
}

func inZone(pv *corev1.PersistentVolume, z string) *corev1.PersistentVolume {
	pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: zone, Operator: corev1.NodeSelectorOpIn, Values: []string{z}}}}}}}
	return pv
}

func claim(name, class string, modes ...corev1.PersistentVolumeAccessMode) *corev1.PersistentVolumeClaim {
	if len(modes) == 0 {
		modes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class, AccessModes: modes,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}
}

func class(name string, mode storagev1.VolumeBindingMode, zones ...string) *storagev1.StorageClass {
	c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: driver, VolumeBindingMode: &mode}
	if len(zones) > 0 {
		c.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: zone, Values: zones}}}}
	}
	return c
}

func limit(node string, n int32) *storagev1.CSINode {
	return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
		{Name: driver, NodeID: node, Allocatable: &storagev1.VolumeNodeResources{Count: &n}}}}}
}

func pod(name string, claims ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	for _, c := range claims {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: c, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c}}})
	}
	return p
}

func (w *world) get(name string) *corev1.Pod {
	w.Helper()
	p, err := store.Get[corev1.Pod](w.c, "default", name)
	w.must(err)
	return p
}

// on checks where a pod is once all is quiet.
func (w *world) on(pod, node string) {
	w.Helper()
	synctest.Wait()
	if got := w.get(pod).Spec.NodeName; got != node {
		w.Errorf("pod %s on %q, want %q; events %q", pod, got, node, w.events(pod))
	}
}

func (w *world) events(pod string) (out []string) {
	for _, e := range store.ListBy[corev1.Event](w.c, store.EventsByObject, string(w.get(pod).UID)) {
		out = append(out, e.Reason+": "+e.Message)
	}
	slices.Sort(out)
	return out
}

func (w *world) event(pod, want string) {
	w.Helper()
	if evs := w.events(pod); !slices.Contains(evs, want) {
		w.Errorf("events of %s:\n%s\nwant\n%s", pod, strings.Join(evs, "\n"), want)
	}
}

func TestPlacement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create(pod("none"))
		w.on("none", "")
		w.event("none", "FailedScheduling: no nodes available to schedule pods")
		bad := node("a-tainted")
		bad.Spec.Taints = []corev1.Taint{{Key: "node.kubernetes.io/not-ready", Effect: corev1.TaintEffectNoSchedule}}
		cordoned := node("b-cordoned")
		cordoned.Spec.Unschedulable = true
		w.create(bad, cordoned)
		time.Sleep(time.Second)
		w.on("none", "")
		w.event("none", "FailedScheduling: 0/2 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.")
		if c := w.get("none").Status.Conditions; len(c) != 1 || c[0].Type != corev1.PodScheduled || c[0].Status != corev1.ConditionFalse || c[0].Reason != "Unschedulable" {
			t.Errorf("conditions %+v", c)
		}
		w.create(node("c"), node("d"))
		time.Sleep(2 * time.Second)
		w.on("none", "c")
		w.event("none", "Scheduled: Successfully assigned default/none to c")
		if c := w.get("none").Status.Conditions; len(c) != 1 || c[0].Status != corev1.ConditionTrue {
			t.Errorf("conditions %+v", c)
		}
		w.create(pod("second"))
		w.on("second", "d") // the one with fewer pods
		tol := pod("tolerant")
		tol.Spec.Tolerations = []corev1.Toleration{{Key: "node.kubernetes.io/not-ready", Operator: corev1.TolerationOpExists}}
		w.create(tol)
		w.on("tolerant", "a-tainted")
		sel := pod("selects")
		sel.Spec.NodeSelector = map[string]string{"disk": "fast"}
		w.create(sel)
		w.on("selects", "")
		w.event("selects", "FailedScheduling: 0/4 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable, 2 node(s) didn't match Pod's node affinity/selector. preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling.")
		byHand := pod("by-hand")
		byHand.Spec.NodeName = "b-cordoned" // bypasses all
		w.create(byHand)
		w.on("by-hand", "b-cordoned")
		other := pod("other")
		other.Spec.SchedulerName = "mine"
		w.create(other)
		w.on("other", "")
		if len(w.events("other")) != 0 {
			t.Errorf("events %q", w.events("other"))
		}
	})
}

func TestClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create(node("a"), pod("p", "c"))
		w.on("p", "")
		w.event("p", `FailedScheduling: 0/1 nodes are available: persistentvolumeclaim "c" not found. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.`)
		w.create(claim("c", "now"))
		time.Sleep(2 * time.Second)
		w.on("p", "")
		w.event("p", `FailedScheduling: 0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.`)
		w.create(class("now", storagev1.VolumeBindingImmediate))
		time.Sleep(5 * time.Second)
		w.on("p", "a")
	})
}

func TestZoneOfABoundVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create(node("a", zone, "z1"), inZone(volume("v", "x"), "z2"), claim("c", "x"), pod("p", "c"))
		time.Sleep(5 * time.Second)
		w.on("p", "")
		w.event("p", "FailedScheduling: 0/1 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.")
		w.create(node("b", zone, "z2"))
		time.Sleep(10 * time.Second)
		w.on("p", "b")
	})
}

func TestWaitForFirstConsumer(t *testing.T) {
	const later = storagev1.VolumeBindingWaitForFirstConsumer
	t.Run("zones", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.create(class("later", later, "z2", "z3"), node("a", zone, "z1"), claim("c", "later"), claim("d", "later"), pod("p", "c", "d"))
			w.on("p", "")
			w.event("p", "FailedScheduling: 0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.")
			w.create(node("b", zone, "z2"))
			time.Sleep(time.Second)
			w.on("p", "b")
			slices.Sort(w.created)
			if !slices.Equal(w.created, []string{"c on b", "d on b"}) {
				t.Errorf("provisioned %q", w.created)
			}
			// A second pod goes where its volumes are.
			w.create(node("c", zone, "z3"), pod("q", "c"))
			w.on("q", "b")
		})
	})
	t.Run("provisioning fails on one node", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.refuse["a"] = true
			w.create(class("later", later), node("a"), claim("c", "later"), pod("p", "c"))
			w.on("p", "")
			w.event("p", `FailedScheduling: running PreBind plugin "VolumeBinding": binding volumes: provisioning failed for PVC "c"`)
			cordon := func(n *corev1.Node) error { n.Spec.Unschedulable = true; return nil }
			_, err := store.Modify(ctx, w.c, "", "a", cordon)
			w.must(err)
			w.create(node("b"))
			time.Sleep(10 * time.Second)
			w.on("p", "b")
			if !slices.Equal(w.created, []string{"c on b"}) {
				t.Errorf("provisioned %q", w.created)
			}
		})
	})
	t.Run("takes static volumes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			none := class("later", later)
			none.Provisioner = "kubernetes.io/no-provisioner"
			w.create(none, node("a", zone, "z1"), node("b", zone, "z2"),
				inZone(volume("v1", "later"), "z1"), inZone(volume("v2", "later"), "z2"), inZone(volume("w2", "later"), "z2"))
			synctest.Wait() // volumes are Available
			w.create(claim("c", "later"), claim("d", "later"), claim("e", "later"), pod("p", "c", "d"), pod("q", "e"))
			time.Sleep(10 * time.Second)
			w.on("p", "b")
			w.on("q", "a")
		})
	})
	t.Run("binding takes too long", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			other := class("later", later)
			other.Provisioner = "nobody.example.com"
			w.create(other, node("a"), claim("c", "later"), pod("p", "c"))
			time.Sleep(11 * time.Minute)
			w.on("p", "")
			w.event("p", `FailedScheduling: running PreBind plugin "VolumeBinding": binding volumes: context deadline exceeded`)
		})
	})
	t.Run("capacity", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.create(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{StorageCapacity: ptr.To(true)}},
				class("later", later), node("a", zone, "z1"), node("b", zone, "z2"), claim("c", "later"), pod("p", "c"))
			w.on("p", "")
			w.event("p", "FailedScheduling: 0/2 nodes are available: 2 node(s) did not have enough free storage. preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.")
			for z, size := range map[string]string{"z1": "512Mi", "z2": "2Gi"} {
				w.create(&storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: z}, StorageClassName: "later",
					Capacity: ptr.To(resource.MustParse(size)), NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{zone: z}}})
			}
			time.Sleep(5 * time.Second)
			w.on("p", "b")
		})
	})
}

func TestAttachLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create(class("now", storagev1.VolumeBindingImmediate), class("later", storagev1.VolumeBindingWaitForFirstConsumer), node("a"), limit("a", 2))
		for i := range 3 {
			w.create(claim(fmt.Sprint("c", i), "now"))
		}
		w.create(claim("l", "later"))
		synctest.Wait()
		w.create(pod("p0", "c0"))
		w.create(pod("p1", "c1"))
		w.create(pod("again", "c0")) // a volume that is there counts once
		w.on("p0", "a")
		w.on("p1", "a")
		w.on("again", "a")
		w.create(pod("full", "c2"), pod("unbound", "l"), pod("without"))
		const msg = "FailedScheduling: 0/1 nodes are available: 1 node(s) exceed max volume count. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
		w.on("full", "")
		w.event("full", msg)
		w.on("unbound", "")
		w.event("unbound", msg)
		w.on("without", "a")
		// The pod goes, its attachment stays: still full (K13).
		va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va"}, Spec: storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: "a",
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("pvc-c1")}}}
		w.create(va)
		w.must(w.c.DeleteNow(ctx, w.get("p1")))
		time.Sleep(time.Minute)
		w.on("full", "")
		w.must(w.c.Delete(ctx, w.get("unbound")))
		w.must(w.c.Delete(ctx, va))
		time.Sleep(10 * time.Second)
		w.on("full", "a")
	})
}

func TestDriverMustBeOnTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{PreventPodSchedulingIfMissing: ptr.To(true)}},
			class("now", storagev1.VolumeBindingImmediate), node("a"), claim("c", "now"))
		synctest.Wait()
		w.create(pod("p", "c"))
		w.on("p", "")
		w.event("p", "FailedScheduling: 0/1 nodes are available: 1 csi.vsphere.vmware.com CSI driver is not installed on the node. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.")
		w.create(limit("a", 1))
		time.Sleep(time.Second)
		w.on("p", "a")
	})
}

func TestReadWriteOncePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create(class("now", storagev1.VolumeBindingImmediate), node("a"), node("b"), claim("c", "now", corev1.ReadWriteOncePod))
		synctest.Wait()
		w.create(pod("p", "c"))
		w.on("p", "a")
		w.create(pod("q", "c"))
		w.on("q", "")
		w.event("q", "FailedScheduling: 0/2 nodes are available: 2 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod. preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod.")
		w.must(w.c.DeleteNow(ctx, w.get("p")))
		time.Sleep(time.Second)
		w.on("q", "a")
	})
}

// A pod that does not fit is tried again at events only, not before its
// back-off, and after five minutes without one.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create(node("a", "x", "0"))
		synctest.Wait() // or the node's event is a second cause to try the pod
		w.create(pod("p", "missing"))
		count := func() int32 {
			synctest.Wait()
			evs := store.ListBy[corev1.Event](w.c, store.EventsByObject, string(w.get("p").UID))
			if len(evs) != 1 {
				t.Fatalf("%d events", len(evs))
			}
			return evs[0].Count
		}
		check := func(want int32) {
			t.Helper()
			if got := count(); got != want {
				t.Errorf("%d tries, want %d", got, want)
			}
		}
		check(1)
		time.Sleep(299 * time.Second)
		check(1)
		time.Sleep(2 * time.Second)
		check(2)
		for i := range 5 { // back-off after the 2nd try is 2 s
			_, err := store.Modify(ctx, w.c, "", "a", func(n *corev1.Node) error { n.Labels["x"] = fmt.Sprint(i + 1); return nil })
			w.must(err)
			synctest.Wait()
		}
		time.Sleep(900 * time.Millisecond)
		check(2)
		time.Sleep(200 * time.Millisecond)
		check(3)
	})
}

// The claim of an ephemeral volume is waited for, and must be the pod's.
func TestEphemeralVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.create(node("a"), class("now", storagev1.VolumeBindingImmediate))
		p := pod("p")
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}})
		w.create(p)
		synctest.Wait()
		w.event("p", `FailedScheduling: 0/1 nodes are available: waiting for ephemeral volume controller to create the persistentvolumeclaim "p-v". preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.`)
		w.create(claim("p-v", "now"))
		time.Sleep(time.Minute)
		w.event("p", `FailedScheduling: 0/1 nodes are available: PVC default/p-v was not created for pod default/p (pod is not owner). preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.`)
		c, err := store.Get[corev1.PersistentVolumeClaim](w.c, "default", "p-v")
		if err != nil {
			t.Fatal(err)
		}
		c.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(w.get("p"), corev1.SchemeGroupVersion.WithKind("Pod"))}
		if err := w.c.Update(ctx, c); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if n := w.get("p").Spec.NodeName; n != "a" {
			t.Errorf("the pod is on %q: %q", n, w.events("p"))
		}
	})
}
