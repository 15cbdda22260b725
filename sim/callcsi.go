package sim

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csilab/csilab/sim/hop"
	"github.com/csilab/csilab/sim/kube/sidecar"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/transport"
)

// Caller calls the driver beside the lab's own sidecars and kubelets: what an
// orchestrator does that is wrong about the state of the world, one of two that
// are active at once, or one that repeats a call long after its answer. Requests
// are made as the sidecars and kubelet make them. All calls pass the hop csi.
type Caller struct {
	l    *Lab
	name string
}

// As is a caller under a name of its own, e.g. "second-attacher". A call that
// must look like kubelet's is made as "kubelet@node-1".
func (l *Lab) As(name string) Caller { return Caller{l, name} }

func (c Caller) controller(do func(csi.ControllerClient) error) error {
	return c.at(c.l.net, c.l.controllerSocket(), "", func(conn *hop.Conn) error { return do(csi.NewControllerClient(conn)) })
}

func (c Caller) node(node string, do func(csi.NodeClient) error) error {
	n := c.l.node(node)
	if n == nil {
		return fmt.Errorf("no node %q", node)
	}
	return c.at(n.net, c.l.plugin().socket, node, func(conn *hop.Conn) error { return do(csi.NewNodeClient(conn)) })
}

func (c Caller) at(network transport.Network, socket, node string, do func(*hop.Conn) error) error {
	conn, err := hop.Dial(hop.Config{Network: network, Endpoint: socket, Hop: ledger.CSI, Component: c.name, Node: node, In: c.l.in, Alter: c.l.opts.AlterCSI})
	if err != nil {
		return err
	}
	defer conn.Close()
	return do(conn)
}

// CreateVolume asks for an ext4 volume of between required and limit bytes (0:
// no limit), with the parameters of the lab's classes.
func (c Caller) CreateVolume(ctx context.Context, name string, required, limit int64) (*csi.Volume, error) {
	return c.CreateVolumeIn(ctx, name, required, limit, "")
}

// CreateVolumeIn is CreateVolume for a zone; "" is for any.
func (c Caller) CreateVolumeIn(ctx context.Context, name string, required, limit int64, zone string) (v *csi.Volume, err error) {
	params := map[string]string{}
	for k, x := range c.l.Parameters(nil) {
		if !strings.HasPrefix(k, sidecar.ParameterPrefix) {
			params[k] = x
		}
	}
	capability, err := sidecar.Capability([]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, true, false, "ext4", nil)
	if err != nil {
		return nil, err
	}
	req := &csi.CreateVolumeRequest{Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: required, LimitBytes: limit},
		VolumeCapabilities: []*csi.VolumeCapability{capability}, Parameters: params, Secrets: c.l.backend.secret()}
	if zone != "" {
		t := []*csi.Topology{{Segments: map[string]string{c.l.facts().zone: zone}}}
		req.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: t, Preferred: t}
	}
	err = c.controller(func(x csi.ControllerClient) error {
		r, err := x.CreateVolume(ctx, req)
		v = r.GetVolume()
		return err
	})
	return v, err
}

// DeleteVolume deletes a volume by its id.
func (c Caller) DeleteVolume(ctx context.Context, id string) error {
	return c.controller(func(x csi.ControllerClient) error {
		_, err := x.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id, Secrets: c.l.backend.secret()})
		return err
	})
}

// Publish asks for a claim's volume on a node.
func (c Caller) Publish(ctx context.Context, pvc, node string) error {
	_, err := c.PublishContext(ctx, pvc, node)
	return err
}

// PublishContext is Publish with what the driver answers.
func (c Caller) PublishContext(ctx context.Context, pvc, node string) (pc map[string]string, err error) {
	pv, err := c.l.csiVolume(pvc)
	if err != nil {
		return nil, err
	}
	capability, err := sidecar.CapabilityOf(pv, true)
	if err != nil {
		return nil, err
	}
	err = c.controller(func(x csi.ControllerClient) error {
		r, err := x.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: pv.Spec.CSI.VolumeHandle, NodeId: c.l.nodeID(node),
			VolumeCapability: capability, VolumeContext: pv.Spec.CSI.VolumeAttributes, Secrets: c.l.backend.secret()})
		pc = r.GetPublishContext()
		return err
	})
	return pc, err
}

// Unpublish asks to take a claim's volume from a node.
func (c Caller) Unpublish(ctx context.Context, pvc, node string) error {
	return c.UnpublishVolume(ctx, c.l.VolumeID(pvc), node)
}

// UnpublishVolume is Unpublish by the volume's id.
func (c Caller) UnpublishVolume(ctx context.Context, id, node string) error {
	return c.controller(func(x csi.ControllerClient) error {
		_, err := x.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: c.l.nodeID(node), Secrets: c.l.backend.secret()})
		return err
	})
}

// CreateSnapshot asks for a snapshot of a volume and gives its id.
func (c Caller) CreateSnapshot(ctx context.Context, name, volumeID string) (id string, err error) {
	err = c.controller(func(x csi.ControllerClient) error {
		r, err := x.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: volumeID, Secrets: c.l.backend.secret()})
		id = r.GetSnapshot().GetSnapshotId()
		return err
	})
	return id, err
}

// NodePublish asks a node's driver to publish a claim's volume at a path,
// staged or not.
func (c Caller) NodePublish(ctx context.Context, pvc, node, target string) error {
	return c.volumeAt(pvc, node, func(x csi.NodeClient, pv *corev1.PersistentVolume, capability *csi.VolumeCapability) error {
		_, err := x.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: pv.Spec.CSI.VolumeHandle, PublishContext: c.l.publishContext(pv, node),
			StagingTargetPath: c.l.StagingPath(pvc), TargetPath: target, VolumeCapability: capability,
			VolumeContext: pv.Spec.CSI.VolumeAttributes, Secrets: c.l.backend.secret()})
		return err
	})
}

// NodeStage asks a node's driver to stage a claim's filesystem at a path.
func (c Caller) NodeStage(ctx context.Context, pvc, node, staging string) error {
	return c.volumeAt(pvc, node, func(x csi.NodeClient, pv *corev1.PersistentVolume, capability *csi.VolumeCapability) error {
		_, err := x.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: pv.Spec.CSI.VolumeHandle, PublishContext: c.l.publishContext(pv, node),
			StagingTargetPath: staging, VolumeCapability: capability, VolumeContext: pv.Spec.CSI.VolumeAttributes, Secrets: c.l.backend.secret()})
		return err
	})
}

// volumeAt calls a node's driver about a claim's volume as its PersistentVolume
// has it.
func (c Caller) volumeAt(pvc, node string, do func(csi.NodeClient, *corev1.PersistentVolume, *csi.VolumeCapability) error) error {
	pv, err := c.l.csiVolume(pvc)
	if err != nil {
		return err
	}
	capability, err := sidecar.CapabilityOf(pv, true)
	if err != nil {
		return err
	}
	return c.node(node, func(x csi.NodeClient) error { return do(x, pv, capability) })
}

// NodeUnpublish asks a node's driver to take a claim's volume off a path.
func (c Caller) NodeUnpublish(ctx context.Context, pvc, node, target string) error {
	return c.node(node, func(x csi.NodeClient) error {
		_, err := x.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: c.l.VolumeID(pvc), TargetPath: target})
		return err
	})
}

// NodeUnstage asks a node's driver to unstage a claim's volume at a path.
func (c Caller) NodeUnstage(ctx context.Context, pvc, node, staging string) error {
	return c.node(node, func(x csi.NodeClient) error {
		_, err := x.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: c.l.VolumeID(pvc), StagingTargetPath: staging})
		return err
	})
}

func (l *Lab) csiVolume(pvc string) (*corev1.PersistentVolume, error) {
	pv, err := l.Volume(l.PVName(pvc))
	if err == nil && pv.Spec.CSI == nil {
		err = fmt.Errorf("PersistentVolume %s is no CSI volume", pv.Name)
	}
	return pv, err
}

func (l *Lab) publishContext(pv *corev1.PersistentVolume, node string) map[string]string {
	as := store.List[storagev1.VolumeAttachment](l.user, "")
	i := slices.IndexFunc(as, func(a *storagev1.VolumeAttachment) bool {
		return a.Spec.NodeName == node && a.Spec.Source.PersistentVolumeName != nil && *a.Spec.Source.PersistentVolumeName == pv.Name
	})
	if i < 0 {
		return nil
	}
	return as[i].Status.AttachmentMetadata
}

func (l *Lab) nodeID(node string) string {
	if n := l.node(node); n != nil {
		return n.csiID()
	}
	return node
}

// StagingPath is where kubelets stage a claim's filesystem; "" without a volume.
func (l *Lab) StagingPath(pvc string) string {
	id := l.VolumeID(pvc)
	if id == "" {
		return ""
	}
	return fmt.Sprintf("%s/plugins/kubernetes.io/csi/%s/%x/globalmount", kubeletRoot, l.DriverName(), sha256.Sum256([]byte(id)))
}

// PublishPath is where a kubelet publishes a claim's filesystem to a pod.
func (l *Lab) PublishPath(pod, pvc string) (string, error) {
	p, err := l.Pod(pod)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s/pods/%s/volumes/kubernetes.io~csi/%s/mount", kubeletRoot, p.UID, l.PVName(pvc)), nil
}
