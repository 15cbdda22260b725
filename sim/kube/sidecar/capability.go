package sidecar

import (
	"errors"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/accessmodes"
	corev1 "k8s.io/api/core/v1"
)

// Capability is the CSI volume capability of access modes. How they map
// depends on whether the driver has SINGLE_NODE_MULTI_WRITER. Errors: modes
// that CSI can't combine.
func Capability(modes []corev1.PersistentVolumeAccessMode, multiWriter, block bool, fsType string, mountFlags []string) (*csi.VolumeCapability, error) {
	mode, err := accessmodes.ToCSIAccessMode(modes, multiWriter)
	if err != nil {
		return nil, err
	}
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode}}
	if block {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		c.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType, MountFlags: mountFlags}}
	}
	return c, nil
}

// CapabilityOf is the capability of a PV, as attacher and resizer pass it
// (external-attacher v4.12.0 pkg/controller/util.go GetVolumeCapabilities).
func CapabilityOf(pv *corev1.PersistentVolume, multiWriter bool) (*csi.VolumeCapability, error) {
	if pv.Spec.CSI == nil {
		return nil, errors.New("CSI volume source was nil")
	}
	return Capability(pv.Spec.AccessModes, multiWriter, IsBlock(pv.Spec.VolumeMode), pv.Spec.CSI.FSType, pv.Spec.MountOptions)
}

// IsBlock says whether a volume mode is raw block; nil is a filesystem.
func IsBlock(m *corev1.PersistentVolumeMode) bool {
	return m != nil && *m == corev1.PersistentVolumeBlock
}
