package sim

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/driver/hpe/kube"
	"github.com/csilab/csilab/driver/trace"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/hpev1"
	"github.com/csilab/csilab/sim/kube/store"
)

// cluster is the lab's API server as the HPE driver uses it.
type cluster struct{ c *store.Client }

var _ kube.Cluster = cluster{}

func missing(err error) error {
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: %v", kube.ErrNotFound, err)
	}
	return err
}

func nodeInfo(o *hpev1.HPENodeInfo) kube.NodeInfo {
	s := o.Spec
	return kube.NodeInfo{Name: o.Name, UUID: s.UUID, IQNs: s.IQNs, Networks: s.Networks, WWPNs: s.WWPNs, NQNs: s.NQNs}
}

// NodeInfo implements kube.Cluster.
func (k cluster) NodeInfo(ctx context.Context, uuid string) (kube.NodeInfo, error) {
	for _, o := range store.List[hpev1.HPENodeInfo](k.c, "") {
		if o.Spec.UUID == uuid {
			return nodeInfo(o), ctx.Err()
		}
	}
	return kube.NodeInfo{}, fmt.Errorf("%w: HPENodeInfo with uuid %q", kube.ErrNotFound, uuid)
}

// NodeInfos implements kube.Cluster.
func (k cluster) NodeInfos(ctx context.Context) (out []kube.NodeInfo, err error) {
	for _, o := range store.List[hpev1.HPENodeInfo](k.c, "") {
		out = append(out, nodeInfo(o))
	}
	return out, ctx.Err()
}

// causedBy gives a write the call of CSI that it is made for as its cause.
func causedBy(ctx context.Context) context.Context {
	return fault.WithCause(ctx, fault.CauseFrom(trace.Parent(ctx)))
}

// PutNodeInfo implements kube.Cluster.
func (k cluster) PutNodeInfo(ctx context.Context, n kube.NodeInfo) error {
	ctx = causedBy(ctx)
	spec := hpev1.NodeInfoSpec{UUID: n.UUID, IQNs: n.IQNs, Networks: n.Networks, WWPNs: n.WWPNs, NQNs: n.NQNs}
	for {
		_, err := store.Modify(ctx, k.c, "", n.Name, func(o *hpev1.HPENodeInfo) error { o.Spec = spec; return nil })
		if !apierrors.IsNotFound(err) {
			return err
		}
		err = k.c.Create(ctx, &hpev1.HPENodeInfo{ObjectMeta: metav1.ObjectMeta{Name: n.Name}, Spec: spec})
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
}

// DeleteNodeInfo implements kube.Cluster.
func (k cluster) DeleteNodeInfo(ctx context.Context, name string) error {
	err := k.c.Delete(causedBy(ctx), &hpev1.HPENodeInfo{ObjectMeta: metav1.ObjectMeta{Name: name}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func claimOf(c *corev1.PersistentVolumeClaim) kube.Claim {
	return kube.Claim{UID: string(c.UID), Namespace: c.Namespace, Name: c.Name, Annotations: c.Annotations, Volume: c.Spec.VolumeName}
}

// Claim implements kube.Cluster.
func (k cluster) Claim(ctx context.Context, uid string) (kube.Claim, error) {
	for _, c := range store.List[corev1.PersistentVolumeClaim](k.c, "") {
		if string(c.UID) == uid {
			return claimOf(c), ctx.Err()
		}
	}
	return kube.Claim{}, fmt.Errorf("%w: PersistentVolumeClaim with uid %q", kube.ErrNotFound, uid)
}

// ClaimNamed implements kube.Cluster.
func (k cluster) ClaimNamed(_ context.Context, namespace, name string) (kube.Claim, error) {
	c, err := store.Get[corev1.PersistentVolumeClaim](k.c, namespace, name)
	if err != nil {
		return kube.Claim{}, missing(err)
	}
	return claimOf(c), nil
}

// Secret implements kube.Cluster.
func (k cluster) Secret(_ context.Context, namespace, name string) (map[string]string, error) {
	s, err := store.Get[corev1.Secret](k.c, namespace, name)
	if err != nil {
		return nil, missing(err)
	}
	out := map[string]string{}
	for key, v := range s.Data {
		out[key] = string(v)
	}
	return out, nil
}
