package sim

import (
	"context"
	"fmt"

	"github.com/vmware/govmomi/cns"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/object"
)

// BackupSnapshot cuts a snapshot of a volume at its vCenter as a backup tool
// does: no VolumeSnapshot knows it. remove deletes it again.
func (l *Lab) BackupSnapshot(ctx context.Context, volumeID string) (id string, remove func(context.Context) error, err error) {
	b := l.vsphere()
	s := b.siteOf(volumeID)
	if s == nil {
		return "", nil, fmt.Errorf("no vCenter has volume %s", volumeID)
	}
	r, err := b.admin(ctx, s.VCenter, func(ctx context.Context, c *cns.Client) (*object.Task, error) {
		return c.CreateSnapshots(ctx, []cnstypes.CnsSnapshotCreateSpec{{VolumeId: cnstypes.CnsVolumeId{Id: volumeID}, Description: "backup"}})
	})
	if err != nil {
		return "", nil, fmt.Errorf("snapshot of volume %s: %w", volumeID, err)
	}
	made, ok := r.(*cnstypes.CnsSnapshotCreateResult)
	if !ok {
		return "", nil, fmt.Errorf("snapshot of volume %s: the result is %T", volumeID, r)
	}
	snap := made.Snapshot.SnapshotId
	remove = func(ctx context.Context) error {
		_, err := b.admin(ctx, s.VCenter, func(ctx context.Context, c *cns.Client) (*object.Task, error) {
			return c.DeleteSnapshots(ctx, []cnstypes.CnsSnapshotDeleteSpec{{VolumeId: cnstypes.CnsVolumeId{Id: volumeID}, SnapshotId: snap}})
		})
		if err != nil {
			return fmt.Errorf("remove snapshot %s: %w", snap.Id, err)
		}
		return nil
	}
	return volumeID + "+" + snap.Id, remove, nil
}
