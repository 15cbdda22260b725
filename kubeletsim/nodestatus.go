package kubeletsim

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/nodestatus"
	"github.com/csilab/csilab/sim/kube/store"
)

// registerNode makes the Node object, once per start, and then the CSINode. A
// Node that is deleted later is not made again until the next start, as with
// kubelet (pkg/kubelet/kubelet_node_status.go, registerWithAPIServer).
func (k *Kubelet) registerNode(ctx context.Context) bool {
	for step := 100 * time.Millisecond; ; step = min(2*step, 7*time.Second) {
		err := func() error {
			_, err := store.Get[corev1.Node](k.cfg.Client, "", k.cfg.NodeName)
			if apierrors.IsNotFound(err) {
				err = k.cfg.Client.Create(ctx, k.newNode())
			}
			if err != nil {
				return err
			}
			_, err = k.csiNode(ctx)
			return err
		}()
		if err == nil {
			return true
		}
		k.log.Error("could not register the node", "error", err)
		if !k.sleep(ctx, step, "node") {
			return false
		}
	}
}

func (k *Kubelet) newNode() *corev1.Node {
	res := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("16Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	now := metav1.NewTime(time.Now())
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: k.cfg.NodeName, Labels: map[string]string{
			corev1.LabelHostname: k.cfg.NodeName, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64"}},
		Spec: corev1.NodeSpec{ProviderID: k.cfg.ProviderID},
		Status: corev1.NodeStatus{Capacity: res, Allocatable: res,
			NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.37.2", OperatingSystem: "linux", Architecture: "amd64", SystemUUID: k.cfg.SystemUUID},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady",
				Message: "CSINode is not yet initialized", LastHeartbeatTime: now, LastTransitionTime: now}},
		},
	}
}

// statusLoop posts the node status at each tick and, with Timers.Eager, when
// the volumes in use have changed.
func (k *Kubelet) statusLoop(ctx context.Context) {
	t := time.NewTicker(k.t.NodeStatusUpdate)
	defer t.Stop()
	for {
		k.postStatus(ctx)
		for again := true; again; {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				k.await(ctx, "status")
				again = false
			case <-k.statusKick:
				k.mu.Lock()
				again = !k.synced() || slices.Equal(k.world.inUse(), k.posted)
				k.mu.Unlock()
			}
		}
	}
}

// synced says that the actual state is complete, so that volumesInUse may be
// replaced (reconciler.go, updateLastSyncTime). The caller holds k.mu.
func (k *Kubelet) synced() bool {
	if !k.world.populated {
		return false
	}
	for _, v := range k.world.actual {
		if v.attachability == attachUncertain {
			return false
		}
	}
	return true
}

// postStatus writes the Ready condition and volumesInUse, when they have changed
// or were not written for long (pkg/kubelet/kubelet_node_status.go,
// tryUpdateNodeStatus). Only once the API server has them do attachable volumes go
// on (I6 rests on that order).
func (k *Kubelet) postStatus(ctx context.Context) {
	for range 5 { // pkg/kubelet/kubelet.go, nodeStatusUpdateRetry
		k.mu.Lock()
		synced, inUse := k.synced(), k.world.inUse()
		k.mu.Unlock()
		var seen *corev1.Node // unless it was written
		node, err := store.ModifyStatus(ctx, k.cfg.Client, "", k.cfg.NodeName, func(n *corev1.Node) error {
			if nodestatus.Ready(n) && (!synced || slices.Equal(n.Status.VolumesInUse, inUse)) && time.Since(k.reported) < k.t.NodeStatusReport {
				seen = n
				return errUnchanged
			}
			seen = nil
			k.setReady(n)
			if synced {
				n.Status.VolumesInUse = inUse
			}
			return nil
		})
		if errors.Is(err, errUnchanged) {
			node, err = seen, nil
		}
		if err == nil {
			if seen == nil {
				k.reported = time.Now()
			}
			k.mu.Lock()
			k.posted = node.Status.VolumesInUse
			changed := k.world.reported(node.Status.VolumesInUse)
			k.mu.Unlock()
			if changed {
				k.wake()
			}
			return
		}
		if ctx.Err() != nil {
			return
		}
		k.log.Error("could not update the node status", "error", err)
		if apierrors.IsNotFound(err) {
			return
		}
	}
}

var errUnchanged = errors.New("the status of the node has not changed")

func (k *Kubelet) setReady(n *corev1.Node) {
	now := metav1.NewTime(time.Now())
	c := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
		Message: "kubelet is posting ready status", LastHeartbeatTime: now, LastTransitionTime: now}
	i := slices.IndexFunc(n.Status.Conditions, func(x corev1.NodeCondition) bool { return x.Type == corev1.NodeReady })
	if i < 0 {
		n.Status.Conditions = append(n.Status.Conditions, c)
		return
	}
	if n.Status.Conditions[i].Status == c.Status {
		c.LastTransitionTime = n.Status.Conditions[i].LastTransitionTime
	}
	n.Status.Conditions[i] = c
}
