package sim

import (
	"context"
	"fmt"

	"github.com/vmware/govmomi/cns"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/object"
)

// ForgetVolume lets CNS lose its record of a volume, attached or not; the disk
// stays where it is. again registers it under its old name.
func (l *Lab) ForgetVolume(id string) (again func(context.Context) error, err error) {
	b, err := l.onVSphere("to unregister a volume")
	if err != nil {
		return nil, err
	}
	s := b.siteOf(id)
	if s == nil {
		return nil, fmt.Errorf("no vCenter has volume %s", id)
	}
	name := ""
	for _, v := range s.Volumes() {
		if v.ID == id {
			name = v.Name
		}
	}
	again = func(ctx context.Context) error {
		_, err := b.admin(ctx, s.VCenter, func(ctx context.Context, c *cns.Client) (*object.Task, error) {
			return c.CreateVolume(ctx, []cnstypes.CnsVolumeCreateSpec{{
				Name: name, VolumeType: string(cnstypes.CnsVolumeTypeBlock),
				Metadata: cnstypes.CnsVolumeMetadata{ContainerCluster: cnstypes.CnsContainerCluster{
					ClusterType: string(cnstypes.CnsClusterTypeKubernetes), ClusterId: clusterID, ClusterFlavor: string(cnstypes.CnsClusterFlavorVanilla)}},
				BackingObjectDetails: &cnstypes.CnsBlockBackingDetails{BackingDiskId: id},
			}})
		})
		if err != nil {
			return fmt.Errorf("register volume %s: %w", id, err)
		}
		return nil
	}
	return again, s.ForgetVolume(id)
}

// Unregister is ForgetVolume for a fault: heal registers the volume again, if its
// disk is there still.
func (l *Lab) Unregister(ctx context.Context, id string) (heal func(), err error) {
	again, err := l.ForgetVolume(id)
	if err != nil {
		return nil, err
	}
	return func() {
		if err := again(context.WithoutCancel(ctx)); err != nil {
			l.log.Debug("register again", "volume", id, "err", err)
		}
	}, nil
}
