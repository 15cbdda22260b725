package san

import (
	"context"

	"github.com/csilab/csilab/driver/hpe/kube"
)

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

// NodeInfo is a node as storage systems know it: an HPENodeInfo, or, in a cluster
// without those, the node's CSI id in JSON.
type NodeInfo = kube.NodeInfo
