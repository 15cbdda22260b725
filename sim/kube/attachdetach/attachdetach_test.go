package attachdetach_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/attachdetach"
	"github.com/csilab/csilab/sim/kube/controller"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

var ctx = context.Background()

const driver = "csi.vsphere.vmware.com"

// world is a store with the controller under test, an attacher and nodes
// without a kubelet: the test plays that.
type world struct {
	*testing.T
	s     *store.Store
	c     *store.Client
	begin time.Time
	stopC func()

	mu          sync.Mutex
	attachErr   string // the attacher reports it instead of attaching
	detachErr   string
	attachDelay time.Duration
	log         []string // what the attacher did, with the time
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, s: store.New(1, nil), begin: time.Now()}
	w.c = w.s.Client("test")
	w.start("attacher", w.attacher)
	w.startController()
	return w
}

func (w *world) start(name string, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.Errorf("%s: %v", name, err)
		}
	})
	w.Cleanup(stop)
	return stop
}

func (w *world) startController() {
	w.stopC = w.start("controller", attachdetach.New(attachdetach.Config{Client: w.s.Client(attachdetach.Actor)}).Run)
}

const finalizer = "external-attacher/csi"

func (w *world) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%v ", time.Since(w.begin))+fmt.Sprintf(format, args...))
}

func (w *world) attacher(ctx context.Context) error {
	c := w.s.Client("csi-attacher")
	return controller.Run(ctx, controller.Config{Name: "attacher", Client: c, Kinds: []string{"VolumeAttachment"},
		Reconcile: func(ctx context.Context, key string) (time.Duration, error) {
			va, err := store.Get[storagev1.VolumeAttachment](c, "", key)
			if err != nil {
				return 0, nil
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if va.DeletionTimestamp != nil {
				if w.detachErr != "" {
					va.Status.DetachError = &storagev1.VolumeError{Message: w.detachErr}
					return 0, c.UpdateStatus(ctx, va)
				}
				if len(va.Finalizers) > 0 {
					w.note("detach %s from %s", *va.Spec.Source.PersistentVolumeName, va.Spec.NodeName)
					va.Finalizers = nil
					return 0, c.Update(ctx, va)
				}
				return 0, nil
			}
			if len(va.Finalizers) == 0 {
				va.Finalizers = []string{finalizer}
				if err := c.Update(ctx, va); err != nil {
					return 0, err
				}
			}
			if va.Status.Attached {
				return 0, nil
			}
			if w.attachErr != "" {
				va.Status.AttachError = &storagev1.VolumeError{Message: w.attachErr}
				return 0, c.UpdateStatus(ctx, va)
			}
			if d := w.attachDelay; d > 0 && time.Since(va.CreationTimestamp.Time) < d {
				return d, nil
			}
			w.note("attach %s to %s", *va.Spec.Source.PersistentVolumeName, va.Spec.NodeName)
			va.Status.Attached, va.Status.AttachError = true, nil
			return 0, c.UpdateStatus(ctx, va)
		}})
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) node(name string) {
	w.Helper()
	w.must(w.c.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	w.ready(name, corev1.ConditionTrue)
}

func (w *world) ready(name string, s corev1.ConditionStatus) {
	w.Helper()
	_, err := store.ModifyStatus(ctx, w.c, "", name, func(n *corev1.Node) error {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: s, LastHeartbeatTime: metav1.Now()}}
		return nil
	})
	w.must(err)
}

// inUse is what kubelet writes to its node's status.
func (w *world) inUse(node string, pvs ...string) {
	w.Helper()
	_, err := store.ModifyStatus(ctx, w.c, "", node, func(n *corev1.Node) error {
		n.Status.VolumesInUse = nil
		for _, pv := range pvs {
			n.Status.VolumesInUse = append(n.Status.VolumesInUse, corev1.UniqueVolumeName(store.VolumeKey(driver, "h-"+pv)))
		}
		return nil
	})
	w.must(err)
}

// volume makes a bound pair of volume and claim of one name.
func (w *world) volume(name string, modes ...corev1.PersistentVolumeAccessMode) {
	w.Helper()
	if len(modes) == 0 {
		modes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: name, AccessModes: modes}}
	w.must(w.c.Create(ctx, claim))
	w.must(w.c.Create(ctx, &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		AccessModes: modes, Capacity: size, ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: name, UID: claim.UID},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "h-" + name}}}}))
	claim.Status.Phase = corev1.ClaimBound
	w.must(w.c.UpdateStatus(ctx, claim))
}

func (w *world) pod(name, node string, claims ...string) *corev1.Pod {
	w.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{NodeName: node}}
	for _, c := range claims {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: c, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c}}})
	}
	w.must(w.c.Create(ctx, p))
	p.Status.Phase = corev1.PodRunning
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	w.must(w.c.UpdateStatus(ctx, p))
	return p
}

func (w *world) gone(p *corev1.Pod) {
	w.Helper()
	w.must(w.c.DeleteNow(ctx, p))
}

// after waits and says what the attacher did in that time.
func (w *world) after(d time.Duration) []string {
	time.Sleep(d)
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.log
	w.log = nil
	return l
}

func (w *world) want(got []string, want ...string) {
	w.Helper()
	if !slices.Equal(got, want) {
		w.Errorf("attacher did %q, want %q", got, want)
	}
}

func (w *world) attached(node string) []string {
	w.Helper()
	n, err := store.Get[corev1.Node](w.c, "", node)
	w.must(err)
	var out []string
	for _, v := range n.Status.VolumesAttached {
		out = append(out, strings.TrimPrefix(string(v.Name), "kubernetes.io/csi/"+driver+"^h-"))
	}
	return out
}

func (w *world) events(o store.Object) (out []string) {
	for _, e := range store.ListBy[corev1.Event](w.c, store.EventsByObject, string(o.GetUID())) {
		out = append(out, fmt.Sprintf("%s: %s x%d", e.Reason, e.Message, e.Count))
	}
	slices.Sort(out)
	return out
}

func (w *world) vas() int { return len(store.List[storagev1.VolumeAttachment](w.c, "")) }

func TestAttachAndDetach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node("n1")
		w.volume("v")
		p, q := w.pod("p", "n1", "v"), w.pod("q", "n1", "v")
		w.want(w.after(0), "0s attach v to n1")
		va, err := store.Get[storagev1.VolumeAttachment](w.c, "", attachdetach.AttachmentName("h-v", driver, "n1"))
		w.must(err)
		if va.Spec.Attacher != driver || va.Spec.NodeName != "n1" || *va.Spec.Source.PersistentVolumeName != "v" {
			t.Errorf("%+v", va.Spec)
		}
		if got := w.attached("n1"); !slices.Equal(got, []string{"v"}) {
			t.Errorf("node lists %v", got)
		}
		if ev := w.events(p); !slices.Equal(ev, []string{`SuccessfulAttachVolume: AttachVolume.Attach succeeded for volume "v"  x1`}) {
			t.Errorf("events %q", ev)
		}
		w.inUse("n1", "v")
		w.gone(p)
		w.want(w.after(time.Minute)) // q still needs it
		w.gone(q)
		w.want(w.after(time.Minute)) // still mounted
		w.inUse("n1")
		w.want(w.after(0), "2m0s detach v from n1")
		if w.vas() != 0 || len(w.attached("n1")) != 0 {
			t.Errorf("%d attachments, node lists %v", w.vas(), w.attached("n1"))
		}
	})
}

func TestAttachmentName(t *testing.T) {
	const want = "csi-43ffdfd833ee144994c969b543a5d50ece73c6cf9047b4fc7cdc00de543ba1e2" // by sha256sum
	if got := attachdetach.AttachmentName("h-v", driver, "n1"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A volume that stays mounted is detached by force six minutes after no pod
// needed it, and only from a node that is not healthy.
func TestForceDetach(t *testing.T) {
	for _, tc := range []struct {
		name string
		fail func(w *world)
		at   string // when it is detached, "" for never
	}{
		{"healthy", func(w *world) {}, ""},
		{"unknown", func(w *world) { w.ready("n1", corev1.ConditionUnknown) }, "6m0s"},
		{"not ready", func(w *world) { w.ready("n1", corev1.ConditionFalse) }, "6m0s"},
		{"taint", func(w *world) {
			w.ready("n1", corev1.ConditionUnknown)
			_, err := store.Modify(ctx, w.c, "", "n1", func(n *corev1.Node) error {
				n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}}
				return nil
			})
			w.must(err)
		}, "0s"},
		{"unhealthy later", func(w *world) {
			go func() {
				time.Sleep(10 * time.Minute)
				w.ready("n1", corev1.ConditionUnknown)
			}()
		}, "10m0s"},
		{"healthy again", func(w *world) {
			w.ready("n1", corev1.ConditionUnknown)
			go func() {
				time.Sleep(6*time.Minute - 1)
				w.ready("n1", corev1.ConditionTrue)
			}()
		}, ""},
		{"unmounted", func(w *world) {
			go func() {
				time.Sleep(time.Minute)
				w.inUse("n1")
			}()
		}, "1m0s"},
		{"node deleted", func(w *world) {
			w.must(w.c.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}))
		}, "6m0s"},
		{"node deleted, unmounted before", func(w *world) {
			w.inUse("n1")
			w.must(w.c.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}))
		}, "0s"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.node("n1")
				w.volume("v")
				p := w.pod("p", "n1", "v")
				w.after(0)
				w.inUse("n1", "v")
				w.gone(p)
				tc.fail(w)
				var want []string
				if tc.at != "" {
					want = append(want, tc.at+" detach v from n1")
				}
				w.want(w.after(24*time.Hour), want...)
			})
		})
	}
}

func TestForceDetachDisabled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.stopC()
		w.start("controller", attachdetach.New(attachdetach.Config{Client: w.s.Client(attachdetach.Actor), DisableForceDetach: true}).Run)
		w.node("n1")
		w.volume("v")
		p := w.pod("p", "n1", "v")
		w.after(0)
		w.inUse("n1", "v")
		w.ready("n1", corev1.ConditionUnknown)
		w.gone(p)
		w.want(w.after(24 * time.Hour))
	})
}

// A pod that is being deleted keeps its volume until its containers stopped.
func TestTerminatingPodKeepsItsVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node("n1")
		w.volume("v")
		p := w.pod("p", "n1", "v")
		w.after(0)
		w.must(w.c.Delete(ctx, p))
		w.want(w.after(time.Hour))
		_, err := store.ModifyStatus(ctx, w.c, "default", "p", func(p *corev1.Pod) error {
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
			return nil
		})
		w.must(err)
		w.want(w.after(0), "1h0m0s detach v from n1")
	})
}

func TestMoveWaitsForDetach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node("n1")
		w.node("n2")
		w.volume("v")
		w.volume("many", corev1.ReadWriteMany)
		p := w.pod("p", "n1", "v")
		w.pod("m1", "n1", "many")
		w.pod("m2", "n2", "many")
		got := w.after(0)
		slices.Sort(got)
		w.want(got, "0s attach many to n1", "0s attach many to n2", "0s attach v to n1")
		w.inUse("n1", "v", "many")
		q := w.pod("q", "n2", "v")
		w.want(w.after(time.Minute))
		if ev := w.events(q); !slices.Equal(ev, []string{`FailedAttachVolume: Waiting for detach for volume "v" Volume is already used by pod(s) p x1`}) {
			t.Errorf("events %q", ev)
		}
		w.gone(p)
		w.want(w.after(time.Minute))
		r := w.pod("r", "n2", "v")
		_ = r
		w.inUse("n1", "many")
		w.want(w.after(0), "2m0s detach v from n1", "2m0s attach v to n2")
		if got := w.attached("n2"); !slices.Equal(got, []string{"many", "v"}) {
			t.Errorf("node lists %v", got)
		}
	})
}

// After a failed attach the attachment is uncertain: it is tried again with
// back-off, and taken away when the pod goes, once the node says that it has
// not mounted it.
func TestAttachFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.attachErr = "rpc error: code = Internal desc = no slot"
		w.node("n1")
		w.volume("v")
		p := w.pod("p", "n1", "v")
		w.after(10 * time.Second)
		// tries at 0, 0.5, 1.5, 3.5, 7.5 s
		if ev := w.events(p); !slices.Equal(ev, []string{`FailedAttachVolume: AttachVolume.Attach failed for volume "v" : rpc error: code = Internal desc = no slot x5`}) {
			t.Errorf("events %q", ev)
		}
		if len(w.attached("n1")) != 0 {
			t.Error("reported as attached")
		}
		w.gone(p)
		w.want(w.after(time.Minute)) // nobody has said yet that it isn't mounted
		w.ready("n1", corev1.ConditionTrue)
		w.want(w.after(0), "1m10s detach v from n1")
		if w.vas() != 0 {
			t.Error("attachment left")
		}
	})
}

func TestAttachTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.attachDelay = 5 * time.Minute
		w.node("n1")
		w.volume("v")
		p := w.pod("p", "n1", "v")
		w.want(w.after(6*time.Minute), "5m0s attach v to n1")
		ev := w.events(p)
		want := []string{
			`FailedAttachVolume: AttachVolume.Attach failed for volume "v" : timed out waiting for external-attacher of csi.vsphere.vmware.com CSI driver to attach volume h-v x2`,
			`SuccessfulAttachVolume: AttachVolume.Attach succeeded for volume "v"  x1`}
		if !slices.Equal(ev, want) {
			t.Errorf("events %q", ev)
		}
	})
}

// The pod goes while its attach is under way: the controller waits for the
// end, then detaches.
func TestPodGoesDuringAttach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.attachDelay = time.Minute
		w.node("n1")
		w.volume("v")
		p := w.pod("p", "n1", "v")
		w.after(10 * time.Second)
		w.gone(p)
		w.want(w.after(time.Hour), "1m0s attach v to n1", "1m0s detach v from n1")
	})
}

func TestDetachFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node("n1")
		w.node("n2")
		w.volume("v")
		p := w.pod("p", "n1", "v")
		w.after(0)
		w.mu.Lock()
		w.detachErr = "busy"
		w.mu.Unlock()
		w.gone(p)
		w.pod("q", "n2", "v")
		w.want(w.after(10*time.Second), "0s attach v to n2") // uncertain attachments don't block: the driver must
		if got := w.attached("n1"); len(got) != 0 {
			t.Errorf("node lists %v", got)
		}
		w.mu.Lock()
		w.detachErr = ""
		w.mu.Unlock()
		_, err := store.Modify(ctx, w.c, "", attachdetach.AttachmentName("h-v", driver, "n1"), func(va *storagev1.VolumeAttachment) error {
			metav1.SetMetaDataAnnotation(&va.ObjectMeta, "poke", "1")
			return nil
		})
		w.must(err)
		w.want(w.after(time.Minute), "10s detach v from n1")
		if w.vas() != 1 {
			t.Errorf("%d attachments", w.vas())
		}
	})
}

// Restart in the middle (K05): what nobody wants is detached, what is wanted
// stays, what is mounted is let alone.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node("n1")
		for _, v := range []string{"dangling", "kept", "mounted", "started"} {
			w.volume(v)
		}
		d := w.pod("d", "n1", "dangling")
		w.pod("k", "n1", "kept")
		m := w.pod("m", "n1", "mounted")
		w.after(0)
		w.inUse("n1", "mounted")
		w.stopC()
		// Made just before a crash, never seen as attached by the controller.
		w.must(w.c.Create(ctx, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: attachdetach.AttachmentName("h-started", driver, "n1")},
			Spec: storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("started")}}}))
		w.gone(d)
		w.gone(m)
		w.want(w.after(time.Minute), "0s attach started to n1")
		w.startController()
		got := w.after(0) // the node's status changes with the first detach, which proves the other not mounted
		slices.Sort(got)
		w.want(got, "1m0s detach dangling from n1", "1m0s detach started from n1")
		w.want(w.after(24 * time.Hour))
		if got := w.attached("n1"); !slices.Equal(got, []string{"kept", "mounted"}) {
			t.Errorf("node lists %v", got)
		}
	})
}

func TestVolumeAttachmentDeletedByHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node("n1")
		w.volume("v")
		w.pod("p", "n1", "v")
		w.after(0)
		w.must(w.c.Delete(ctx, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: attachdetach.AttachmentName("h-v", driver, "n1")}}))
		w.want(w.after(time.Hour), "0s detach v from n1", "1m0s attach v to n1")
	})
}

func TestDriverWithoutAttach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.must(w.c.Create(ctx, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)}}))
		w.node("n1")
		w.volume("v")
		w.pod("p", "n1", "v")
		w.want(w.after(time.Hour))
		_, err := store.Modify(ctx, w.c, "", driver, func(d *storagev1.CSIDriver) error { d.Spec.AttachRequired = nil; return nil })
		w.must(err)
		w.want(w.after(0), "1h0m0s attach v to n1")
	})
}

// An ephemeral volume is attached for the pod that its claim was made for, and for
// no other.
func TestEphemeralVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node("n")
		w.volume("p-v")
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Spec: corev1.PodSpec{NodeName: "n",
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}}}
		w.must(w.c.Create(ctx, p))
		w.want(w.after(time.Minute))
		_, err := store.Modify(ctx, w.c, "default", "p-v", func(c *corev1.PersistentVolumeClaim) error {
			c.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(p, corev1.SchemeGroupVersion.WithKind("Pod"))}
			return nil
		})
		w.must(err)
		w.want(w.after(time.Minute), "1m0s attach p-v to n")
	})
}

func TestNodeThatComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.volume("v")
		w.pod("p", "n1", "v")
		w.want(w.after(time.Minute))
		w.node("n1")
		w.want(w.after(0), "1m0s attach v to n1")
	})
}

// The node's status says that the volume is not safe to mount any more before
// the VolumeAttachment goes.
func TestNodeStatusFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.node("n1")
		w.volume("v")
		p := w.pod("p", "n1", "v")
		w.after(0)
		var order []string
		w.start("watch", func(ctx context.Context) error {
			for e := range w.c.Watch(ctx, "Node", "VolumeAttachment") {
				if n, ok := e.Object.(*corev1.Node); ok && len(n.Status.VolumesAttached) == 0 {
					order = append(order, "status")
				}
				if e.Object.GetDeletionTimestamp() != nil && e.Type == store.Modified {
					order = append(order, "delete")
				}
			}
			return nil
		})
		synctest.Wait()
		w.gone(p)
		w.after(0)
		if !slices.Equal(order, []string{"status", "delete"}) {
			t.Errorf("order %v", order)
		}
	})
}

// Writes that the API server refuses are tried again, with back-off where the
// original has one.
func TestAPIErrors(t *testing.T) {
	for _, tc := range []struct {
		op    string
		first int
		want  []string
	}{
		{"create volumeattachments", 3, []string{"3.5s attach v to n1", "1m0s detach v from n1"}}, // 0.5 + 1 + 2 s
		{"delete volumeattachments", 3, []string{"0s attach v to n1", "1m3.5s detach v from n1"}},
		{"update-status nodes", 3, []string{"0s attach v to n1", "1m0s detach v from n1"}},
	} {
		t.Run(tc.op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				plan := &fault.Plan{}
				rule := plan.Arm(fault.Rule{Name: "refused", Hop: ledger.Kube, Component: attachdetach.Actor, Op: tc.op, First: tc.first,
					Do: fault.Error(apierrors.NewInternalError(errors.New("etcdserver: request timed out")))})
				w := &world{T: t, s: store.New(1, &fault.Interceptor{Plan: plan}), begin: time.Now()}
				w.c = w.s.Client("test")
				w.start("attacher", w.attacher)
				w.startController()
				w.node("n1")
				w.volume("v")
				p := w.pod("p", "n1", "v")
				got := w.after(time.Minute)
				if l := w.attached("n1"); !slices.Equal(l, []string{"v"}) {
					t.Errorf("node lists %v", l)
				}
				w.gone(p)
				got = append(got, w.after(time.Minute)...)
				w.want(got, tc.want...)
				if l := w.attached("n1"); len(l) != 0 || w.vas() != 0 || rule.Fired() != tc.first {
					t.Errorf("node lists %v, %d attachments, refused %d times", l, w.vas(), rule.Fired())
				}
			})
		})
	}
}

// The controller dies at each of its writes, before or after the commit; the
// next one finds out and goes on.
func TestCrashAtEachWrite(t *testing.T) {
	for _, op := range []string{"create volumeattachments", "update-status nodes", "delete volumeattachments"} {
		for _, phase := range []fault.Phase{fault.Before, fault.After} {
			for nth := 1; nth <= 2; nth++ {
				t.Run(fmt.Sprintf("%s/%s/%d", op, phase, nth), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						plan := &fault.Plan{}
						plan.Arm(fault.Rule{Name: "crash", Hop: ledger.Kube, Component: attachdetach.Actor, Op: op, Phase: phase, Nth: nth, Do: fault.Error(fault.ErrCrashed)})
						w := &world{T: t, s: store.New(1, &fault.Interceptor{Plan: plan}), begin: time.Now()}
						w.c = w.s.Client("test")
						w.start("attacher", w.attacher)
						w.start("controller", func(ctx context.Context) error { // restarted one second after each crash
							for {
								err := attachdetach.New(attachdetach.Config{Client: w.s.Client(attachdetach.Actor)}).Run(ctx)
								if !errors.Is(err, fault.ErrCrashed) {
									return err
								}
								select {
								case <-time.After(time.Second):
								case <-ctx.Done():
									return nil
								}
							}
						})
						w.node("n1")
						w.node("n2")
						w.volume("v")
						p := w.pod("p", "n1", "v")
						w.after(10 * time.Second)
						w.inUse("n1", "v")
						w.gone(p)
						q := w.pod("q", "n2", "v")
						w.after(10 * time.Second)
						if w.vas() != 1 {
							t.Errorf("%d attachments: the volume is mounted on n1", w.vas())
						}
						w.inUse("n1")
						w.after(10 * time.Second)
						if l := w.attached("n2"); !slices.Equal(l, []string{"v"}) || len(w.attached("n1")) != 0 {
							t.Errorf("n1 lists %v, n2 %v", w.attached("n1"), l)
						}
						w.gone(q)
						w.after(time.Minute)
						w.ready("n1", corev1.ConditionTrue) // heartbeats
						w.ready("n2", corev1.ConditionTrue)
						w.after(time.Minute)
						if w.vas() != 0 || len(w.attached("n2")) != 0 {
							t.Errorf("%d attachments left, n2 lists %v", w.vas(), w.attached("n2"))
						}
					})
				})
			}
		}
	}
}
