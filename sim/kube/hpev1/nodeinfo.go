// Package hpev1 has the objects of the API group storage.hpe.com/v1 that the
// HPE driver keeps: HPENodeInfo (the CRD's fields, co-deployments
// helm/charts/hpe-csi-driver/crds).
package hpev1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// SchemeGroupVersion of the package's objects.
var SchemeGroupVersion = schema.GroupVersion{Group: "storage.hpe.com", Version: "v1"}

// HPENodeInfo is a node with its initiators. It is cluster-scoped, named after
// the node.
type HPENodeInfo struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              NodeInfoSpec `json:"spec"`
}

// NodeInfoSpec says what a host is to an array.
type NodeInfoSpec struct {
	UUID     string   `json:"uuid"`
	IQNs     []string `json:"iqns,omitempty"`
	Networks []string `json:"networks,omitempty"` // addresses with prefix lengths
	WWPNs    []string `json:"wwpns,omitempty"`
	NQNs     []string `json:"nqns,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (n *HPENodeInfo) DeepCopyObject() runtime.Object {
	out := *n
	n.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	s := &out.Spec
	s.IQNs, s.Networks, s.WWPNs, s.NQNs = slices.Clone(s.IQNs), slices.Clone(s.Networks), slices.Clone(s.WWPNs), slices.Clone(s.NQNs)
	return &out
}
