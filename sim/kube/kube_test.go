package kube_test

import (
	"context"
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

	"github.com/csilab/csilab/sim/kube"
	"github.com/csilab/csilab/sim/kube/controller"
	"github.com/csilab/csilab/sim/kube/nodestatus"
	"github.com/csilab/csilab/sim/kube/store"
)

var ctx = context.Background()

const driver = "csi.vsphere.vmware.com"

// world is the core with stand-ins for the sidecars and kubelets.
type world struct {
	*testing.T
	s        *store.Store
	c        *store.Client
	begin    time.Time
	kubelets map[string]context.CancelFunc
	mu       sync.Mutex
	log      []string
}

func newWorld(t *testing.T, nodes ...string) *world {
	w := &world{T: t, s: store.New(1, nil), begin: time.Now(), kubelets: map[string]context.CancelFunc{}}
	w.c = w.s.Client("test")
	w.start(ctx, func(ctx context.Context) error { return kube.RunCore(ctx, kube.Config{Store: w.s}) })
	w.start(ctx, w.provisioner)
	w.start(ctx, w.attacher)
	for _, n := range nodes {
		w.kubelet(n)
	}
	synctest.Wait()
	return w
}

func (w *world) start(ctx context.Context, run func(context.Context) error) context.CancelFunc {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	w.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.Error(err)
		}
	})
	return cancel
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) note(s string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, time.Since(w.begin).String()+" "+s)
}

func (w *world) provisioner(ctx context.Context) error {
	c := w.s.Client("csi-provisioner")
	return controller.Run(ctx, controller.Config{Name: "p", Client: c, Kinds: []string{"PersistentVolumeClaim", "PersistentVolume", "VolumeAttachment"},
		Keys: func(e store.Event) []string {
			if va, ok := e.Object.(*storagev1.VolumeAttachment); ok {
				return []string{"PersistentVolume " + *va.Spec.Source.PersistentVolumeName}
			}
			return []string{e.Kind + " " + store.Key(e.Object)}
		},
		Reconcile: func(ctx context.Context, key string) (time.Duration, error) {
			kind, key, _ := strings.Cut(key, " ")
			ns, name := store.SplitKey(key)
			if kind == "PersistentVolume" {
				v, err := store.Get[corev1.PersistentVolume](c, "", name)
				if err == nil && v.Status.Phase == corev1.VolumeReleased && v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete &&
					len(store.ListBy[storagev1.VolumeAttachment](c, store.AttachmentsByPV, name)) == 0 && v.DeletionTimestamp == nil {
					w.note("delete volume " + name)
					return 0, c.Delete(ctx, v)
				}
				return 0, nil
			}
			p, err := store.Get[corev1.PersistentVolumeClaim](c, ns, name)
			if err != nil || p.Spec.VolumeName != "" || p.Annotations["volume.kubernetes.io/storage-provisioner"] != driver {
				return 0, nil
			}
			v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + name}, Spec: corev1.PersistentVolumeSpec{
				StorageClassName: *p.Spec.StorageClassName, AccessModes: p.Spec.AccessModes, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
				Capacity: p.Spec.Resources.Requests, ClaimRef: &corev1.ObjectReference{Namespace: ns, Name: name, UID: p.UID},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: name}}}}
			if c.Create(ctx, v) == nil {
				w.note("create volume pvc-" + name)
			}
			return 0, nil
		}})
}

func (w *world) attacher(ctx context.Context) error {
	c := w.s.Client("csi-attacher")
	return controller.Run(ctx, controller.Config{Name: "a", Client: c, Kinds: []string{"VolumeAttachment"},
		Reconcile: func(ctx context.Context, key string) (time.Duration, error) {
			va, err := store.Get[storagev1.VolumeAttachment](c, "", key)
			if err != nil {
				return 0, nil
			}
			pv := *va.Spec.Source.PersistentVolumeName
			switch {
			case va.DeletionTimestamp != nil:
				w.note("detach " + pv + " from " + va.Spec.NodeName)
				va.Finalizers = nil
				return 0, c.Update(ctx, va)
			case !va.Status.Attached:
				va.Finalizers = []string{"x/attacher"}
				if err := c.Update(ctx, va); err != nil {
					return 0, err
				}
				w.note("attach " + pv + " to " + va.Spec.NodeName)
				va.Status.Attached = true
				return 0, c.UpdateStatus(ctx, va)
			}
			return 0, nil
		}})
}

// kubelet runs a node: heartbeats, pods and volumesInUse. Its volumes stay in
// use until one second after the pod's containers stopped.
func (w *world) kubelet(name string) {
	c := w.s.Client("kubelet@" + name)
	beat := func(ctx context.Context) error {
		var vols []corev1.UniqueVolumeName
		for _, p := range store.ListBy[corev1.Pod](c, store.PodsByNode, name) {
			for _, k := range store.ClaimKeys(p) {
				ns, claim := store.SplitKey(k)
				if o, err := store.Get[corev1.PersistentVolumeClaim](c, ns, claim); err == nil && o.Spec.VolumeName != "" {
					vols = append(vols, corev1.UniqueVolumeName(store.VolumeKey(driver, claim)))
				}
			}
		}
		slices.Sort(vols)
		_, err := store.ModifyStatus(ctx, c, "", name, func(n *corev1.Node) error {
			n.Status.VolumesInUse = vols
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(time.Now())}}
			return nil
		})
		return err
	}
	if _, err := store.Get[corev1.Node](c, "", name); err != nil {
		w.must(c.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	w.kubelets[name] = w.start(ctx, func(ctx context.Context) error {
		return controller.Run(ctx, controller.Config{Name: "k", Client: c, Kinds: []string{"Pod", "Node"},
			Keys: func(e store.Event) []string {
				if p, ok := e.Object.(*corev1.Pod); ok {
					if p.Spec.NodeName == name {
						return []string{store.Key(p)}
					}
				} else if e.Object.GetName() == name && e.Type == store.Added {
					return []string{""}
				}
				return nil
			},
			Reconcile: func(ctx context.Context, key string) (time.Duration, error) {
				if key == "" {
					_ = beat(ctx)
					return 10 * time.Second, nil
				}
				ns, pod := store.SplitKey(key)
				p, err := store.Get[corev1.Pod](c, ns, pod)
				if err != nil {
					return 0, beat(ctx)
				}
				if err := beat(ctx); err != nil {
					return 0, err
				}
				switch {
				case p.DeletionTimestamp != nil:
					time.Sleep(time.Second) // the containers stop, the volumes are unmounted
					if ctx.Err() != nil {
						return 0, nil
					}
					return 0, c.DeleteNow(ctx, p)
				case p.Status.Phase == corev1.PodPending && w.attachedAll(c, p, name):
					p.Status.Phase = corev1.PodRunning
					p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
					return 0, c.UpdateStatus(ctx, p)
				case p.Status.Phase == corev1.PodPending:
					return time.Second, nil
				}
				return 0, nil
			}})
	})
}

func (w *world) attachedAll(c *store.Client, p *corev1.Pod, node string) bool {
	n, err := store.Get[corev1.Node](c, "", node)
	if err != nil {
		return false
	}
	for _, k := range store.ClaimKeys(p) {
		_, claim := store.SplitKey(k)
		if !slices.ContainsFunc(n.Status.VolumesAttached, func(v corev1.AttachedVolume) bool {
			return string(v.Name) == store.VolumeKey(driver, claim)
		}) {
			return false
		}
	}
	return true
}

func (w *world) pod(name string, claims ...string) {
	w.Helper()
	var t []corev1.Toleration
	for _, k := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		t = append(t, corev1.Toleration{Key: k, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](300)})
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{Tolerations: t}}
	for _, c := range claims {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c}}})
	}
	w.must(w.c.Create(ctx, p))
}

func (w *world) claim(name string) {
	w.Helper()
	w.must(w.c.Create(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("sc"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}))
}

func (w *world) class(mode storagev1.VolumeBindingMode) {
	w.Helper()
	w.must(w.c.Create(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "sc"}, Provisioner: driver, VolumeBindingMode: &mode}))
}

func (w *world) status(pod string) (node string, phase corev1.PodPhase) {
	synctest.Wait()
	p, err := store.Get[corev1.Pod](w.c, "default", pod)
	if err != nil {
		return "", ""
	}
	if p.DeletionTimestamp != nil {
		return p.Spec.NodeName, "Terminating"
	}
	return p.Spec.NodeName, p.Status.Phase
}

func (w *world) want(pod, node string, phase corev1.PodPhase) {
	w.Helper()
	if n, p := w.status(pod); n != node || p != phase {
		w.Errorf("at %v: pod %s on %q is %q, want %q %q", time.Since(w.begin), pod, n, p, node, phase)
	}
}

// did waits and gives what the stand-ins did.
func (w *world) did(d time.Duration, want ...string) {
	w.Helper()
	time.Sleep(d)
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.log, want) {
		w.Errorf("at %v: done %q, want %q", time.Since(w.begin), w.log, want)
	}
	w.log = nil
}

func TestLifeOfAVolume(t *testing.T) {
	for _, mode := range []storagev1.VolumeBindingMode{storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer} {
		t.Run(string(mode), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, "n1", "n2")
				w.class(mode)
				w.claim("a")
				synctest.Wait()
				w.pod("p", "a")
				w.did(20*time.Second, "0s create volume pvc-a", "0s attach pvc-a to n1")
				w.want("p", "n1", corev1.PodRunning)
				// The claim stays while the pod uses it.
				w.must(w.c.Delete(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}}))
				w.did(time.Minute)
				w.must(w.c.Delete(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}}))
				w.did(5*time.Second, "1m21s detach pvc-a from n1", "1m21s delete volume pvc-a")
				if n := len(store.List[corev1.PersistentVolume](w.c, "")) + len(store.List[corev1.PersistentVolumeClaim](w.c, "")) + len(store.List[storagev1.VolumeAttachment](w.c, "")); n != 0 {
					t.Errorf("%d objects left", n)
				}
			})
		})
	}
}

// A node loses power. Its pod is evicted, but stays until somebody says that
// the node is off.
func TestNodePoweredOff(t *testing.T) {
	off := func(t *testing.T) *world {
		w := newWorld(t, "n1", "n2")
		w.class(storagev1.VolumeBindingImmediate)
		w.claim("a")
		w.pod("p", "a")
		time.Sleep(time.Minute)
		w.want("p", "n1", corev1.PodRunning)
		w.kubelets["n1"]()
		w.mu.Lock()
		w.log, w.begin = nil, time.Now()
		w.mu.Unlock()
		// The last heartbeat was now: silent at 50 s, evicted 300 s later.
		time.Sleep(50*time.Second - 1)
		w.want("p", "n1", corev1.PodRunning)
		time.Sleep(300 * time.Second)
		w.want("p", "n1", corev1.PodRunning)
		time.Sleep(time.Nanosecond)
		w.want("p", "n1", "Terminating")
		w.pod("q", "a")
		w.did(10 * time.Minute)
		w.want("p", "n1", "Terminating")
		w.want("q", "n2", corev1.PodPending)
		w.mu.Lock()
		w.begin = time.Now()
		w.mu.Unlock()
		return w
	}
	t.Run("out of service", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := off(t)
			_, err := store.Modify(ctx, w.c, "", "n1", func(n *corev1.Node) error {
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute})
				return nil
			})
			w.must(err)
			w.did(2*time.Second, "0s detach pvc-a from n1", "0s attach pvc-a to n2")
			w.want("q", "n2", corev1.PodRunning)
			w.want("p", "", "")
		})
	})
	t.Run("force delete", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := off(t)
			w.must(w.c.DeleteNow(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}}))
			w.did(7*time.Minute, "6m0s detach pvc-a from n1", "6m0s attach pvc-a to n2")
			w.want("q", "n2", corev1.PodRunning)
		})
	})
	t.Run("node deleted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := off(t)
			w.must(w.c.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}))
			w.did(10*time.Minute, "6m40s detach pvc-a from n1", "6m40s attach pvc-a to n2") // 40 s until its pods are garbage
			w.want("q", "n2", corev1.PodRunning)
		})
	})
	t.Run("comes back", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := off(t)
			w.kubelet("n1")
			w.did(5*time.Second, "1s detach pvc-a from n1", "1s attach pvc-a to n2")
			w.want("q", "n2", corev1.PodRunning)
			n, _ := store.Get[corev1.Node](w.c, "", "n1")
			if !nodestatus.Ready(n) || len(n.Spec.Taints) != 0 {
				t.Errorf("%+v", n.Spec.Taints)
			}
		})
	})
}

func TestComponentsStandAlone(t *testing.T) {
	if err := kube.RunCore(ctx, kube.Config{}); err == nil {
		t.Error("no error without a store")
	}
	if n := len(kube.Components(kube.Config{})); n != 11 {
		t.Errorf("%d components", n)
	}
}
