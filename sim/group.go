package sim

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/hop"
	"github.com/csilab/csilab/sim/ledger"
)

// TakeGroupSnapshot asks the driver for snapshots of several claims at one
// moment, as a group snapshotter does, and notes what they must hold. The lab
// has no controller for groups: SnapshotOfGroup makes objects for them.
// It returns the group's id and the snapshots' by claim.
func (l *Lab) TakeGroupSnapshot(ctx context.Context, name string, pvcs ...string) (group string, ids map[string]string, err error) {
	c, err := l.groups()
	if err != nil {
		return "", nil, err
	}
	defer c.close()
	byVolume := map[string]string{}
	req := &csi.CreateVolumeGroupSnapshotRequest{Name: name, Secrets: l.backend.secret()}
	for _, pvc := range pvcs {
		id := l.VolumeID(pvc)
		byVolume[id] = pvc
		req.SourceVolumeIds = append(req.SourceVolumeIds, id)
	}
	r, err := c.CreateVolumeGroupSnapshot(ctx, req)
	if err != nil {
		return "", nil, err
	}
	ids = map[string]string{}
	for _, s := range r.GetGroupSnapshot().GetSnapshots() {
		pvc := byVolume[s.GetSourceVolumeId()]
		if pvc == "" {
			return "", nil, fmt.Errorf("the group has a snapshot of volume %q, which is none of %q", s.GetSourceVolumeId(), pvcs)
		}
		ids[pvc] = s.GetSnapshotId()
		files := l.data.expected(l, s.GetSourceVolumeId())
		l.data.mu.Lock()
		l.data.snapshots[s.GetSnapshotId()] = maps.Clone(files)
		l.data.mu.Unlock()
	}
	if len(ids) != len(pvcs) {
		return "", nil, fmt.Errorf("the group has %d snapshots of %d claims", len(ids), len(pvcs))
	}
	return r.GetGroupSnapshot().GetGroupSnapshotId(), ids, nil
}

// SnapshotOfGroup makes a VolumeSnapshot and its content for a snapshot of a
// group, which outlives them.
func (l *Lab) SnapshotOfGroup(ctx context.Context, name, id string) error {
	content := name + "-content"
	err := l.Create(ctx,
		&snapshotv1.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: content}, Spec: snapshotv1.VolumeSnapshotContentSpec{
			Driver: l.DriverName(), DeletionPolicy: snapshotv1.VolumeSnapshotContentRetain,
			Source:            snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: &id},
			VolumeSnapshotRef: corev1.ObjectReference{Namespace: Namespace, Name: name}}},
		&snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name}, Spec: snapshotv1.VolumeSnapshotSpec{
			Source: snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: &content}}})
	if err != nil {
		return err
	}
	_, err = l.SnapshotReady(ctx, name)
	return err
}

// DeleteGroupSnapshot deletes a group with its snapshots.
func (l *Lab) DeleteGroupSnapshot(ctx context.Context, group string, ids map[string]string) error {
	c, err := l.groups()
	if err != nil {
		return err
	}
	defer c.close()
	req := &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: group, SnapshotIds: slices.Sorted(maps.Values(ids)), Secrets: l.backend.secret()}
	_, err = c.DeleteVolumeGroupSnapshot(ctx, req)
	return err
}

type groups struct {
	csi.GroupControllerClient
	close func()
}

// groups is a connection to the driver's GroupController service.
func (l *Lab) groups() (groups, error) {
	conn, err := hop.Dial(hop.Config{Network: l.net, Endpoint: l.controllerSocket(), Hop: ledger.CSI, Component: "csi-snapshotter", In: l.in})
	if err != nil {
		return groups{}, err
	}
	return groups{csi.NewGroupControllerClient(conn), func() { conn.Close() }}, nil
}
