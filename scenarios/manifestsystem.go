package scenarios

import (
	"slices"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csilab/csilab/driver"
	"github.com/csilab/csilab/sim/kube/store"
)

// System is what the objects are for, as --backend names it: an array where one of
// them names its driver, over FC where such a one says so and over iSCSI else, or
// vSphere.
func (m Manifests) System() string {
	system := "vsphere"
	for _, o := range m.objs {
		for _, v := range volumesOf(o) {
			switch {
			case v.driver != driver.Name(driver.HPE):
			case strings.EqualFold(v.parameters["accessProtocol"], "fc"): // the driver takes either case
				return "hpe-fc"
			default:
				system = "hpe-iscsi"
			}
		}
	}
	return system
}

// Drivers are the names of drivers of labs that the objects name, in the order in
// which they do.
func (m Manifests) Drivers() (names []string) {
	for _, o := range m.objs {
		for _, v := range volumesOf(o) {
			known := v.driver == driver.Name(driver.HPE) || v.driver == driver.Name(driver.VSphere)
			if known && !slices.Contains(names, v.driver) {
				names = append(names, v.driver)
			}
		}
	}
	return names
}

// naming is which driver an object wants, and how.
type naming struct {
	driver     string
	parameters map[string]string
}

// volumesOf are the drivers that an object names for volumes or snapshots.
func volumesOf(o store.Object) (out []naming) {
	switch o := o.(type) {
	case *storagev1.StorageClass:
		return []naming{{o.Provisioner, o.Parameters}}
	case *snapshotv1.VolumeSnapshotClass:
		return []naming{{driver: o.Driver}}
	case *snapshotv1.VolumeSnapshotContent:
		return []naming{{driver: o.Spec.Driver}}
	case *corev1.PersistentVolume:
		if c := o.Spec.CSI; c != nil {
			return []naming{{c.Driver, c.VolumeAttributes}}
		}
	case *corev1.Pod:
		for _, v := range o.Spec.Volumes {
			if c := v.CSI; c != nil {
				out = append(out, naming{c.Driver, c.VolumeAttributes})
			}
		}
	}
	return out
}
