package sim

import (
	"context"
	"fmt"
	"slices"

	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"

	core "github.com/csilab/csilab/sim/vcenter/cns"
)

// TrackChanges turns changed block tracking of a claim's volume on or off at
// the vCenter, as a backup tool does.
func (l *Lab) TrackChanges(ctx context.Context, pvc string, on bool) error {
	id := l.VolumeID(pvc)
	s := l.vsphere().siteOf(id)
	if s == nil {
		return fmt.Errorf("no vCenter has a volume of claim %q", pvc)
	}
	vs := s.Volumes()
	v := vs[slices.IndexFunc(vs, func(v core.Volume) bool { return v.ID == id })]
	ds := types.ManagedObjectReference{Type: "Datastore", Value: v.Datastore}
	flags := []string{string(types.VslmVStorageObjectControlFlagEnableChangedBlockTracking)}
	err := l.vsphere().asAdmin(ctx, s.VCenter, func(ctx context.Context, c *vim25.Client) error {
		m := c.ServiceContent.VStorageObjectManager
		if on {
			_, err := methods.SetVStorageObjectControlFlags(ctx, c, &types.SetVStorageObjectControlFlags{This: *m, Id: types.ID{Id: id}, Datastore: ds, ControlFlags: flags})
			return err
		}
		_, err := methods.ClearVStorageObjectControlFlags(ctx, c, &types.ClearVStorageObjectControlFlags{This: *m, Id: types.ID{Id: id}, Datastore: ds, ControlFlags: flags})
		return err
	})
	if err != nil {
		return fmt.Errorf("change tracking of %s: %w", pvc, err)
	}
	return nil
}
