package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/csilab/csilab/driver/hpe/kube"
)

// nodeInfos is where HPENodeInfo objects are, which have no namespace.
const nodeInfos = "/apis/storage.hpe.com/v1/hpenodeinfos"

// nodeInfo is an HPENodeInfo. The CRD requires uuid and networks.
type nodeInfo struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   meta   `json:"metadata"`
	Spec       struct {
		UUID     string   `json:"uuid"`
		IQNs     []string `json:"iqns,omitempty"`
		Networks []string `json:"networks"`
		WWPNs    []string `json:"wwpns,omitempty"`
		NQNs     []string `json:"nqns,omitempty"`
	} `json:"spec"`
}

func (o nodeInfo) node() kube.NodeInfo {
	s := o.Spec
	return kube.NodeInfo{Name: o.Metadata.Name, UUID: s.UUID, IQNs: some(s.IQNs), Networks: some(s.Networks), WWPNs: some(s.WWPNs), NQNs: some(s.NQNs)}
}

// some is a list, nil without anything.
func some(l []string) []string {
	if len(l) == 0 {
		return nil
	}
	return l
}

// NodeInfos implements kube.Cluster.
func (c *Cluster) NodeInfos(ctx context.Context) ([]kube.NodeInfo, error) {
	all, err := list[nodeInfo](ctx, c, nodeInfos)
	if err != nil {
		return nil, fmt.Errorf("HPENodeInfo objects: %w", err)
	}
	var out []kube.NodeInfo
	for _, o := range all {
		out = append(out, o.node())
	}
	slices.SortFunc(out, func(a, b kube.NodeInfo) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// NodeInfo implements kube.Cluster.
func (c *Cluster) NodeInfo(ctx context.Context, uuid string) (kube.NodeInfo, error) {
	all, err := c.NodeInfos(ctx)
	if err != nil {
		return kube.NodeInfo{}, err
	}
	for _, n := range all {
		if n.UUID == uuid {
			return n, nil
		}
	}
	return kube.NodeInfo{}, fmt.Errorf("HPENodeInfo with uuid %q: %w", uuid, kube.ErrNotFound)
}

// maxConflicts is how often an object is written again that somebody else wrote
// meanwhile.
const maxConflicts = 5

// PutNodeInfo implements kube.Cluster.
func (c *Cluster) PutNodeInfo(ctx context.Context, n kube.NodeInfo) error {
	if n.Name == "" || n.UUID == "" {
		return fmt.Errorf("kube: HPENodeInfo has name %q and uuid %q, both are required", n.Name, n.UUID)
	}
	path := nodeInfos + "/" + url.PathEscape(n.Name)
	var err error
	for range maxConflicts {
		var o nodeInfo
		err = c.call(ctx, http.MethodGet, path, nil, nil, &o)
		missing := errors.Is(err, kube.ErrNotFound)
		if err != nil && !missing {
			break
		}
		o.APIVersion, o.Kind, o.Metadata.Name = "storage.hpe.com/v1", "HPENodeInfo", n.Name
		o.Spec.UUID, o.Spec.IQNs, o.Spec.WWPNs, o.Spec.NQNs = n.UUID, n.IQNs, n.WWPNs, n.NQNs
		if o.Spec.Networks = n.Networks; o.Spec.Networks == nil {
			o.Spec.Networks = []string{}
		}
		if missing {
			o.Metadata.ResourceVersion = ""
			err = c.call(ctx, http.MethodPost, nodeInfos, nil, o, nil)
		} else {
			err = c.call(ctx, http.MethodPut, path, nil, o, nil)
		}
		// Written meanwhile, or gone.
		if !refused(err, http.StatusConflict) && !errors.Is(err, kube.ErrNotFound) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("HPENodeInfo %s: %w", n.Name, err)
	}
	return nil
}

// DeleteNodeInfo implements kube.Cluster.
func (c *Cluster) DeleteNodeInfo(ctx context.Context, name string) error {
	err := c.call(ctx, http.MethodDelete, nodeInfos+"/"+url.PathEscape(name), nil, nil, nil)
	if errors.Is(err, kube.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("HPENodeInfo %s: %w", name, err)
	}
	return nil
}

type claim struct {
	Metadata meta `json:"metadata"`
	Spec     struct {
		VolumeName string `json:"volumeName"`
	} `json:"spec"`
}

func (o claim) claim() kube.Claim {
	return kube.Claim{UID: o.Metadata.UID, Namespace: o.Metadata.Namespace, Name: o.Metadata.Name, Annotations: o.Metadata.Annotations, Volume: o.Spec.VolumeName}
}

// Claim implements kube.Cluster. The API finds no object by its uid: all claims
// are read.
func (c *Cluster) Claim(ctx context.Context, uid string) (kube.Claim, error) {
	all, err := list[claim](ctx, c, "/api/v1/persistentvolumeclaims")
	if err != nil {
		return kube.Claim{}, fmt.Errorf("claims: %w", err)
	}
	for _, o := range all {
		if o.Metadata.UID == uid {
			return o.claim(), nil
		}
	}
	return kube.Claim{}, fmt.Errorf("PersistentVolumeClaim with uid %q: %w", uid, kube.ErrNotFound)
}

// ClaimNamed implements kube.Cluster.
func (c *Cluster) ClaimNamed(ctx context.Context, namespace, name string) (kube.Claim, error) {
	var o claim
	if err := c.namespaced(ctx, "persistentvolumeclaims", namespace, name, &o); err != nil {
		return kube.Claim{}, fmt.Errorf("PersistentVolumeClaim %s/%s: %w", namespace, name, err)
	}
	return o.claim(), nil
}

// Secret implements kube.Cluster.
func (c *Cluster) Secret(ctx context.Context, namespace, name string) (map[string]string, error) {
	var o struct {
		Data map[string][]byte `json:"data"` // encoding/json decodes base64
	}
	if err := c.namespaced(ctx, "secrets", namespace, name, &o); err != nil {
		return nil, fmt.Errorf("Secret %s/%s: %w", namespace, name, err)
	}
	out := map[string]string{}
	for k, v := range o.Data {
		out[k] = string(v)
	}
	return out, nil
}

// namespaced reads an object of the core group.
func (c *Cluster) namespaced(ctx context.Context, resource, namespace, name string, out any) error {
	if namespace == "" || name == "" { // would be another path
		return kube.ErrNotFound
	}
	return c.call(ctx, http.MethodGet, "/api/v1/namespaces/"+url.PathEscape(namespace)+"/"+resource+"/"+url.PathEscape(name), nil, nil, out)
}
