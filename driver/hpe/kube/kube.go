// Package kube is what the HPE backend needs of the Kubernetes cluster that it
// runs in: nodes with their initiators, claims with their annotations, and
// secrets. The driver works without one too (upstream's flavor "vanilla"): then
// a node's id is the node itself in JSON, and nothing can be overridden by a
// claim.
package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// ErrNotFound is returned for an object that the cluster doesn't have.
var ErrNotFound = errors.New("kube: not found")

// Cluster is an object store. All methods are safe for concurrent use. Errors
// are ErrNotFound, those of the context, and others that a retry may cure.
type Cluster interface {
	// NodeInfo returns the HPENodeInfo with this host uuid.
	NodeInfo(ctx context.Context, uuid string) (NodeInfo, error)
	// NodeInfos returns all of them.
	NodeInfos(ctx context.Context) ([]NodeInfo, error)
	// PutNodeInfo creates or replaces the HPENodeInfo of a name.
	PutNodeInfo(ctx context.Context, n NodeInfo) error
	// DeleteNodeInfo removes one by name; a missing one is no error.
	DeleteNodeInfo(ctx context.Context, name string) error
	// Claim returns the PersistentVolumeClaim with this uid.
	Claim(ctx context.Context, uid string) (Claim, error)
	// ClaimNamed returns a PersistentVolumeClaim by namespace and name.
	ClaimNamed(ctx context.Context, namespace, name string) (Claim, error)
	// Secret returns the data of a Secret, decoded.
	Secret(ctx context.Context, namespace, name string) (map[string]string, error)
}

// NodeInfo is a node as a storage network knows it. Its JSON is the spec of an
// HPENodeInfo with the name beside it, and, in a cluster without those, the
// node's CSI id.
type NodeInfo struct {
	Name string `json:"name,omitempty"`
	// UUID of the host: any text that is the host's alone.
	UUID string `json:"uuid"`
	// IQNs are iSCSI initiator names, WWPNs 16 hex digits each, NQNs names of
	// NVMe hosts.
	IQNs []string `json:"iqns,omitempty"`
	// Networks are addresses with prefix lengths: 192.0.2.7/24.
	Networks []string `json:"networks,omitempty"`
	WWPNs    []string `json:"wwpns,omitempty"`
	NQNs     []string `json:"nqns,omitempty"`
}

// ParseNodeID reads a CSI node id: a host uuid, which a Cluster can look up, or
// the node in JSON, with whole set.
func ParseNodeID(id string) (n NodeInfo, whole bool, err error) {
	if !strings.HasPrefix(strings.TrimSpace(id), "{") {
		if id == "" {
			return n, false, errors.New("kube: node id is empty")
		}
		return NodeInfo{UUID: id}, false, nil
	}
	if err := json.Unmarshal([]byte(id), &n); err != nil {
		return n, false, fmt.Errorf("kube: node id is not JSON: %w", err)
	}
	if n.UUID == "" {
		return n, false, errors.New("kube: node id is JSON without uuid")
	}
	return n, true, nil
}

// Claim is a PersistentVolumeClaim.
type Claim struct {
	UID, Namespace, Name string
	Annotations          map[string]string
	// Volume is the PersistentVolume that it is bound to, "" while it isn't.
	Volume string
}

// Memory is a Cluster in memory. Its zero value is empty and ready.
type Memory struct {
	mu      sync.Mutex
	nodes   map[string]NodeInfo // by uuid
	names   map[string]string   // name to uuid
	claims  map[string]Claim
	named   map[string]string // namespace/name to uid
	secrets map[string]map[string]string
}

var _ Cluster = (*Memory)(nil)

// NodeInfo implements Cluster.
func (m *Memory) NodeInfo(ctx context.Context, uuid string) (NodeInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, ok := m.nodes[uuid]
	if !ok {
		return n, fmt.Errorf("HPENodeInfo with uuid %q: %w", uuid, ErrNotFound)
	}
	return n, ctx.Err()
}

// NodeInfos implements Cluster.
func (m *Memory) NodeInfos(ctx context.Context) ([]NodeInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []NodeInfo
	for _, n := range m.nodes {
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b NodeInfo) int { return strings.Compare(a.Name, b.Name) })
	return out, ctx.Err()
}

// PutNodeInfo implements Cluster.
func (m *Memory) PutNodeInfo(ctx context.Context, n NodeInfo) error {
	if n.Name == "" || n.UUID == "" {
		return fmt.Errorf("kube: HPENodeInfo has name %q and uuid %q, both are required", n.Name, n.UUID)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.nodes == nil {
		m.nodes, m.names = map[string]NodeInfo{}, map[string]string{}
	}
	delete(m.nodes, m.names[n.Name])
	m.nodes[n.UUID], m.names[n.Name] = n, n.UUID
	return nil
}

// DeleteNodeInfo implements Cluster.
func (m *Memory) DeleteNodeInfo(ctx context.Context, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.nodes, m.names[name])
	delete(m.names, name)
	return nil
}

// PutClaim adds or replaces a claim.
func (m *Memory) PutClaim(c Claim) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.claims == nil {
		m.claims, m.named = map[string]Claim{}, map[string]string{}
	}
	m.claims[c.UID], m.named[c.Namespace+"/"+c.Name] = c, c.UID
}

// Claim implements Cluster.
func (m *Memory) Claim(ctx context.Context, uid string) (Claim, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, ok := m.claims[uid]
	if !ok {
		return c, fmt.Errorf("PersistentVolumeClaim with uid %q: %w", uid, ErrNotFound)
	}
	return c, ctx.Err()
}

// ClaimNamed implements Cluster.
func (m *Memory) ClaimNamed(ctx context.Context, namespace, name string) (Claim, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, ok := m.claims[m.named[namespace+"/"+name]]
	if !ok {
		return c, fmt.Errorf("PersistentVolumeClaim %s/%s: %w", namespace, name, ErrNotFound)
	}
	return c, ctx.Err()
}

// PutSecret adds or replaces a Secret.
func (m *Memory) PutSecret(namespace, name string, data map[string]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.secrets == nil {
		m.secrets = map[string]map[string]string{}
	}
	m.secrets[namespace+"/"+name] = data
}

// Secret implements Cluster.
func (m *Memory) Secret(ctx context.Context, namespace, name string) (map[string]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.secrets[namespace+"/"+name]
	if !ok {
		return nil, fmt.Errorf("Secret %s/%s: %w", namespace, name, ErrNotFound)
	}
	return s, ctx.Err()
}
