package kubeletsim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/hop"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/transport"
)

// csiClient calls a registered driver's node service. Each call has a
// connection of its own, and each operation asks for the capabilities that it
// depends on, as kubelet does (pkg/volume/csi/csi_client.go, newV1NodeClient).
type csiClient struct {
	network                transport.Network
	in                     *fault.Interceptor
	driver, endpoint, node string
}

// client gives a client for a registered driver.
func (k *Kubelet) client(driver string) (*csiClient, error) {
	k.mu.Lock()
	d, ok := k.drivers[driver]
	k.mu.Unlock()
	if driver == "" {
		return nil, errors.New("driver name is empty")
	}
	if !ok {
		return nil, fmt.Errorf("driver name %s not found in the list of registered CSI drivers", driver)
	}
	return &csiClient{network: k.cfg.Network, in: k.cfg.In, driver: driver, endpoint: d.endpoint, node: k.cfg.NodeName}, nil
}

func (c *csiClient) call(ctx context.Context, f func(context.Context, csi.NodeClient) error) error {
	conn, err := hop.Dial(hop.Config{Network: c.network, Endpoint: c.endpoint, Hop: ledger.CSI,
		Component: "kubelet@" + c.node, Node: c.node, In: c.in})
	if err != nil {
		return err
	}
	defer conn.Close()
	return f(ctx, csi.NewNodeClient(conn))
}

func (c *csiClient) nodeGetInfo(ctx context.Context) (out *csi.NodeGetInfoResponse, err error) {
	err = c.call(ctx, func(ctx context.Context, n csi.NodeClient) error {
		out, err = n.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
		return err
	})
	return out, err
}

func (c *csiClient) supports(ctx context.Context, t csi.NodeServiceCapability_RPC_Type) (bool, error) {
	var out *csi.NodeGetCapabilitiesResponse
	err := c.call(ctx, func(ctx context.Context, n csi.NodeClient) (err error) {
		out, err = n.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
		return err
	})
	if err != nil {
		return false, certain(err)
	}
	return slices.ContainsFunc(out.GetCapabilities(), func(x *csi.NodeServiceCapability) bool { return x.GetRpc().GetType() == t }), nil
}

func (c *csiClient) supportsStage(ctx context.Context) (bool, error) {
	return c.supports(ctx, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
}

func (c *csiClient) supportsMountGroup(ctx context.Context) (bool, error) {
	return c.supports(ctx, csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP)
}

// accessMode maps a Kubernetes access mode (csi_client.go, asCSIAccessModeV1
// and asSingleNodeMultiWriterCapableCSIAccessModeV1).
func (c *csiClient) accessMode(ctx context.Context, m corev1.PersistentVolumeAccessMode) (csi.VolumeCapability_AccessMode_Mode, error) {
	fine, err := c.supports(ctx, csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	if err != nil {
		return 0, err
	}
	return csiAccessMode(m, fine), nil
}

func csiAccessMode(m corev1.PersistentVolumeAccessMode, singleNodeMultiWriter bool) csi.VolumeCapability_AccessMode_Mode {
	switch {
	case m == corev1.ReadOnlyMany:
		return csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case m == corev1.ReadWriteMany:
		return csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	case m == corev1.ReadWriteOnce && singleNodeMultiWriter:
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	case m == corev1.ReadWriteOncePod && singleNodeMultiWriter:
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	case m == corev1.ReadWriteOnce, m == corev1.ReadWriteOncePod:
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	}
	return csi.VolumeCapability_AccessMode_UNKNOWN
}

// mountArgs are what a volume's stage, publish and expand have in common.
type mountArgs struct {
	volumeID       string
	publishContext map[string]string
	volumeContext  map[string]string
	secrets        map[string]string
	accessMode     corev1.PersistentVolumeAccessMode
	block          bool
	fsType         string
	mountFlags     []string
	fsGroup        *int64 // only for a driver with VOLUME_MOUNT_GROUP
}

func (a mountArgs) capability(m csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: m}}
	if a.block {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		return c
	}
	mv := &csi.VolumeCapability_MountVolume{FsType: a.fsType, MountFlags: a.mountFlags}
	if a.fsGroup != nil {
		mv.VolumeMountGroup = strconv.FormatInt(*a.fsGroup, 10)
	}
	c.AccessType = &csi.VolumeCapability_Mount{Mount: mv}
	return c
}

func (c *csiClient) stage(ctx context.Context, a mountArgs, staging string) error {
	mode, err := c.accessMode(ctx, a.accessMode)
	if err != nil {
		return err
	}
	return certain(c.call(ctx, func(ctx context.Context, n csi.NodeClient) error {
		_, err := n.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: a.volumeID, PublishContext: a.publishContext,
			StagingTargetPath: staging, VolumeCapability: a.capability(mode), Secrets: a.secrets, VolumeContext: a.volumeContext})
		return err
	}))
}

func (c *csiClient) publish(ctx context.Context, a mountArgs, staging, target string, readOnly bool) error {
	mode, err := c.accessMode(ctx, a.accessMode)
	if err != nil {
		return err
	}
	return certain(c.call(ctx, func(ctx context.Context, n csi.NodeClient) error {
		_, err := n.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: a.volumeID, PublishContext: a.publishContext,
			StagingTargetPath: staging, TargetPath: target, VolumeCapability: a.capability(mode), Readonly: readOnly,
			Secrets: a.secrets, VolumeContext: a.volumeContext})
		return err
	}))
}

func (c *csiClient) unpublish(ctx context.Context, id, target string) error {
	return c.call(ctx, func(ctx context.Context, n csi.NodeClient) error {
		_, err := n.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
		return err
	})
}

func (c *csiClient) unstage(ctx context.Context, id, staging string) error {
	return c.call(ctx, func(ctx context.Context, n csi.NodeClient) error {
		_, err := n.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staging})
		return err
	})
}

func (c *csiClient) expand(ctx context.Context, a mountArgs, volumePath, staging string, size resource.Quantity) error {
	mode, err := c.accessMode(ctx, a.accessMode)
	if err != nil {
		return err
	}
	return certain(c.call(ctx, func(ctx context.Context, n csi.NodeClient) error {
		_, err := n.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{VolumeId: a.volumeID, VolumePath: volumePath,
			StagingTargetPath: staging, CapacityRange: &csi.CapacityRange{RequiredBytes: size.Value()},
			VolumeCapability: a.capability(mode), Secrets: a.secrets})
		return err
	}))
}

func (c *csiClient) stats(ctx context.Context, id, volumePath string) (out *csi.NodeGetVolumeStatsResponse, err error) {
	err = c.call(ctx, func(ctx context.Context, n csi.NodeClient) error {
		out, err = n.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: volumePath})
		return err
	})
	return out, err
}
