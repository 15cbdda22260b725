// Package nodestatus answers what controllers ask about a node.
package nodestatus

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Condition is a node's condition of a type, or nil.
func Condition(n *corev1.Node, t corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == t {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

// Ready says whether the node reports Ready=True. Source: k8s v1.37.2
// pkg/util/node/node.go IsNodeReady.
func Ready(n *corev1.Node) bool {
	c := Condition(n, corev1.NodeReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// OutOfService says whether the node has the taint node.kubernetes.io/out-of-service,
// with any value and effect, by which an administrator promises that the node is
// powered off. Source: k8s v1.37.2 pkg/util/taints/taints.go TaintKeyExists.
func OutOfService(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}
