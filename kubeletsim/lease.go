package kubeletsim

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/store"
)

// leaseLoop renews the node's Lease, by which the node lifecycle controller knows
// that the kubelet lives (component-helpers apimachinery/lease/controller.go).
func (k *Kubelet) leaseLoop(ctx context.Context) {
	for {
		if err := k.renewLease(ctx); err != nil && ctx.Err() == nil {
			k.log.Error("could not renew the lease", "error", err)
		}
		if !k.sleep(ctx, k.t.LeaseRenew, "lease") {
			return
		}
	}
}

// renewLease writes the time into the Lease, which it makes when there is none and
// there is a Node that can own it.
func (k *Kubelet) renewLease(ctx context.Context) error {
	_, err := store.Modify(ctx, k.cfg.Client, corev1.NamespaceNodeLease, k.cfg.NodeName, func(l *coordinationv1.Lease) error {
		now := metav1.NewMicroTime(time.Now())
		l.Spec.RenewTime = &now
		return nil
	})
	if !apierrors.IsNotFound(err) {
		return err
	}
	node, err := store.Get[corev1.Node](k.cfg.Client, "", k.cfg.NodeName)
	if err != nil {
		return err
	}
	now, seconds := metav1.NewMicroTime(time.Now()), int32(4*k.t.LeaseRenew/time.Second)
	return k.cfg.Client.Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: node.Name,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &node.Name, LeaseDurationSeconds: &seconds, RenewTime: &now},
	})
}
