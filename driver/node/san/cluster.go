package san

import "context"

// Cluster is what a node asks of the cluster that it is part of. Its methods are
// safe for concurrent use.
type Cluster interface {
	// NodeInfos are the HPENodeInfo objects of all nodes.
	NodeInfos(ctx context.Context) ([]NodeInfo, error)
	// PutNodeInfo creates or replaces the one of a name.
	PutNodeInfo(ctx context.Context, n NodeInfo) error
	// DeleteNodeInfo removes one by name; a missing one is no error.
	DeleteNodeInfo(ctx context.Context, name string) error
	// Secret is the data of a Secret, decoded.
	Secret(ctx context.Context, namespace, name string) (map[string]string, error)
}

// NodeInfo is a node as storage systems know it: the spec of an HPENodeInfo with
// its name beside it, or, in a cluster without those, the node's CSI id in JSON.
type NodeInfo struct {
	Name     string   `json:"name,omitempty"`
	UUID     string   `json:"uuid"`
	IQNs     []string `json:"iqns,omitempty"`
	Networks []string `json:"networks,omitempty"` // 192.0.2.7/24
	WWPNs    []string `json:"wwpns,omitempty"`
	NQNs     []string `json:"nqns,omitempty"`
}
