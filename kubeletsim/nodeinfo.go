package kubeletsim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/store"
)

// nodeIDAnnotation on the Node holds the node ids of all drivers
// (pkg/volume/csi/nodeinfomanager/nodeinfomanager.go:46).
const nodeIDAnnotation = "csi.volume.kubernetes.io/nodeid"

// fewTimes runs f up to four times, with 10, 50 and 250 ms between
// (nodeinfomanager.go:55, updateBackoff).
func (k *Kubelet) fewTimes(ctx context.Context, f func() error) error {
	var errs []error
	wait := 10 * time.Millisecond
	for range 4 {
		if len(errs) > 0 {
			if !k.sleep(ctx, wait, "driver") {
				return context.Cause(ctx)
			}
			wait *= 5
		}
		err := f()
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// installDriver writes a driver's node info to Node and CSINode
// (nodeinfomanager.go, InstallCSIDriver).
func (k *Kubelet) installDriver(ctx context.Context, name, nodeID string, limit int64, topology map[string]string) error {
	if nodeID == "" {
		return errors.New("error adding CSI driver node info: driverNodeID must not be empty")
	}
	if err := k.fewTimes(ctx, func() error {
		_, err := store.Modify(ctx, k.cfg.Client, "", k.cfg.NodeName, func(n *corev1.Node) error {
			ids, err := nodeIDs(n)
			if err != nil {
				return err
			}
			for key, v := range topology {
				if cur, ok := n.Labels[key]; ok && cur != v {
					return fmt.Errorf("detected topology value collision: driver reported %q:%q but existing label is %q:%q", key, v, key, cur)
				}
			}
			ids[name] = nodeID
			setNodeIDs(n, ids)
			if n.Labels == nil {
				n.Labels = map[string]string{}
			}
			maps.Copy(n.Labels, topology)
			return nil
		})
		return err
	}); err != nil {
		return fmt.Errorf("error updating Node object with CSI driver node info: error updating node: %v", err)
	}
	if err := k.fewTimes(ctx, func() error {
		cn, err := k.csiNode(ctx)
		if err != nil {
			return err
		}
		return k.putDriver(ctx, cn, name, nodeID, limit, topology)
	}); err != nil {
		return fmt.Errorf("error updating CSINode object with CSI driver node info: error updating CSINode: %v", err)
	}
	return nil
}

func (k *Kubelet) putDriver(ctx context.Context, cn *storagev1.CSINode, name, nodeID string, limit int64, topology map[string]string) error {
	d := storagev1.CSINodeDriver{Name: name, NodeID: nodeID, TopologyKeys: sortedKeys(topology)}
	switch {
	case limit > 0:
		count := int32(min(limit, math.MaxInt32))
		d.Allocatable = &storagev1.VolumeNodeResources{Count: &count}
	case limit < 0:
		// Kubelet logs it and publishes no limit (nodeinfomanager.go:604).
		k.log.Error("invalid attach limit value cannot be added to CSINode object", "driver", name, "limit", limit)
	}
	cn.Spec.Drivers = slices.DeleteFunc(cn.Spec.Drivers, func(x storagev1.CSINodeDriver) bool { return x.Name == name })
	cn.Spec.Drivers = append(cn.Spec.Drivers, d)
	return k.cfg.Client.Update(ctx, cn)
}

// uninstallDriver takes a driver out of CSINode and Node.
func (k *Kubelet) uninstallDriver(ctx context.Context, name string) error {
	if err := k.fewTimes(ctx, func() error {
		_, err := store.Modify(ctx, k.cfg.Client, "", k.cfg.NodeName, func(cn *storagev1.CSINode) error {
			cn.Spec.Drivers = slices.DeleteFunc(cn.Spec.Drivers, func(x storagev1.CSINodeDriver) bool { return x.Name == name })
			return nil
		})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}); err != nil {
		return fmt.Errorf("error uninstalling CSI driver from CSINode object %v", err)
	}
	if err := k.fewTimes(ctx, func() error {
		_, err := store.Modify(ctx, k.cfg.Client, "", k.cfg.NodeName, func(n *corev1.Node) error {
			ids, err := nodeIDs(n)
			if err != nil {
				return err
			}
			delete(ids, name)
			setNodeIDs(n, ids)
			return nil
		})
		return err
	}); err != nil {
		return fmt.Errorf("error removing CSI driver node info from Node object %v", err)
	}
	return nil
}

// csiNode gets the CSINode object, making it where it is missing. One that
// belongs to a former Node of the same name is deleted
// (nodeinfomanager.go, ensureNodeOwnsCSINode).
func (k *Kubelet) csiNode(ctx context.Context) (*storagev1.CSINode, error) {
	node, err := store.Get[corev1.Node](k.cfg.Client, "", k.cfg.NodeName)
	if err != nil {
		return nil, err
	}
	cn, err := store.Get[storagev1.CSINode](k.cfg.Client, "", k.cfg.NodeName)
	if apierrors.IsNotFound(err) {
		cn = &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node.Name, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}}}
		return cn, k.cfg.Client.Create(ctx, cn)
	}
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(cn.OwnerReferences, func(r metav1.OwnerReference) bool {
		return r.Kind == "Node" && r.Name == node.Name && r.UID == node.UID
	}) {
		if err := k.cfg.Client.Delete(ctx, cn); err != nil {
			return nil, fmt.Errorf("error deleting existing CSINode %q: %w", cn.Name, err)
		}
		return nil, fmt.Errorf("CSINode %q was owned by different node (newNodeID=%q), deleted it", cn.Name, node.UID)
	}
	return cn, nil
}

func nodeIDs(n *corev1.Node) (map[string]string, error) {
	ids := map[string]string{}
	if v := n.Annotations[nodeIDAnnotation]; v != "" {
		if err := json.Unmarshal([]byte(v), &ids); err != nil {
			return nil, fmt.Errorf("failed to parse node's %q annotation value (%q) err=%v", nodeIDAnnotation, v, err)
		}
	}
	return ids, nil
}

func setNodeIDs(n *corev1.Node, ids map[string]string) {
	if len(ids) == 0 {
		delete(n.Annotations, nodeIDAnnotation)
		return
	}
	b, _ := json.Marshal(ids) // a map of strings always marshals
	if n.Annotations == nil {
		n.Annotations = map[string]string{}
	}
	n.Annotations[nodeIDAnnotation] = string(b)
}
