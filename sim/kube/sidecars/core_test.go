package sidecars_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube"
	"github.com/csilab/csilab/sim/kube/controller"
	"github.com/csilab/csilab/sim/kube/sidecar"
	"github.com/csilab/csilab/sim/kube/sidecar/sidecartest"
	"github.com/csilab/csilab/sim/kube/store"
)

// kubelet is a stand-in: the node is well, pods on it run at once and end at once.
func kubelet(ctx context.Context, l *sidecartest.Lab, node string) error {
	c := l.Store.Client("kubelet@" + node)
	return controller.Run(ctx, controller.Config{Name: "kubelet", Client: c, Kinds: []string{"Pod", "Node"},
		Reconcile: func(ctx context.Context, key string) (time.Duration, error) {
			if key == node {
				_, err := store.ModifyStatus(ctx, c, "", node, func(n *corev1.Node) error {
					n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(time.Now())}}
					return nil
				})
				return 10 * time.Second, err
			}
			ns, name := store.SplitKey(key)
			p, err := store.Get[corev1.Pod](c, ns, name)
			if err != nil || p.Spec.NodeName != node {
				return 0, nil
			}
			if p.DeletionTimestamp != nil {
				return 0, c.DeleteNow(ctx, p)
			}
			p.Status.Phase = corev1.PodRunning
			return 0, c.UpdateStatus(ctx, p)
		}})
}

// With the real controllers of the control plane: a pod's node decides the
// zone, the driver is out of space at the first try and the scheduler chooses
// again, the pod's end frees all.
func TestWithTheCore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := sidecartest.New(t)
		defer l.Close()
		l.Driver.Zones = true
		l.Driver.Answer("CreateVolume", sidecartest.Status(codes.ResourceExhausted))
		l.Node("n1", "a")
		l.Node("n2", "b")
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 3)
		go func() { done <- kube.RunCore(ctx, kube.Config{Store: l.Store}) }()
		go func() { done <- kubelet(ctx, l, "n1") }()
		go func() { done <- kubelet(ctx, l, "n2") }()
		defer func() {
			cancel()
			for range 3 {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
		}()
		set := sidecar.Real()
		set.Provisioner.Topology = true
		set.Attacher.ReconcileSync = 0
		l.Start(set)
		time.Sleep(time.Second)

		sc := sidecartest.Class("sc", nil)
		wait := storagev1.VolumeBindingWaitForFirstConsumer
		sc.VolumeBindingMode = &wait
		pvc := sidecartest.Claim("data", "sc", "1Gi")
		pvc.Annotations = nil // the binder asks for the provisioner
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v",
			VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}}}
		l.Create(sc, pvc, pod)
		time.Sleep(time.Minute)
		p, err := store.Get[corev1.Pod](l.Client, "default", "p")
		if err != nil || p.Status.Phase != corev1.PodRunning {
			t.Fatalf("pod %+v, %v; events %q; ledger %s", p.Status, err, l.Events("Pod"), l.Sequence())
		}
		pvs := store.List[corev1.PersistentVolume](l.Client, "")
		zone := map[string]string{"n1": "a", "n2": "b"}[p.Spec.NodeName]
		if len(pvs) != 1 || pvs[0].Status.Phase != corev1.VolumeBound || pvs[0].Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0] != zone {
			t.Errorf("PVs %+v for node %s", pvs, p.Spec.NodeName)
		}
		vas := store.List[storagev1.VolumeAttachment](l.Client, "")
		if len(vas) != 1 || !vas[0].Status.Attached || vas[0].Spec.NodeName != p.Spec.NodeName {
			t.Errorf("attachments %+v", vas)
		}
		// The claim waits for the pod, the volume for its detach.
		c, _ := store.Get[corev1.PersistentVolumeClaim](l.Client, "default", "data")
		l.Delete(c)
		time.Sleep(time.Minute)
		if got := l.Sequence(); got != "CreateVolume CreateVolume ControllerPublishVolume" {
			t.Error(got)
		}
		l.Delete(p)
		time.Sleep(10 * time.Minute)
		if got := strings.TrimPrefix(l.Sequence(), "CreateVolume CreateVolume ControllerPublishVolume "); got != "ControllerUnpublishVolume DeleteVolume" {
			t.Error(got)
		}
		if n := len(store.List[corev1.PersistentVolume](l.Client, "")) + len(store.List[corev1.PersistentVolumeClaim](l.Client, "")) + len(store.List[storagev1.VolumeAttachment](l.Client, "")); n != 0 {
			t.Errorf("%d objects left", n)
		}
		if got := l.Driver.Left(); got != "0 volumes, 0 attached, 0 snapshots" {
			t.Error(got)
		}
	})
}
