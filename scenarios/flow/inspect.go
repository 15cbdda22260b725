package flow

import (
	"context"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/kube/store"
)

func init() {
	c := filesystem.claim("data")
	register(Flow{
		Name: "inspect",
		Text: "what the driver says of volumes, snapshots, nodes and space is asked for, and is right",
		Prepare: func(ctx context.Context, l *sim.Lab) error {
			return steps(
				func() error { return written(ctx, l, filesystem, c, "app", l.Nodes()[0], "looked at") },
				func() error { _, err := l.TakeSnapshot(ctx, "cut", c.Name, "snap"); return err },
			)
		},
		Body: func(ctx context.Context, l *sim.Lab) error {
			for _, q := range questions {
				err := again(ctx, l, func(ctx context.Context) error {
					return l.Ask(ctx, func(ctx context.Context, a sim.Asker) error { return q.ask(ctx, l, a, c.Name) })
				})
				if err != nil {
					return fmt.Errorf("%s: %w", q.about, err)
				}
			}
			return again(ctx, l, func(ctx context.Context) error {
				u, err := l.Space(ctx, "app", "/"+c.Name)
				if err == nil && (u.TotalBytes <= 0 || u.AvailableBytes > u.TotalBytes) {
					err = fmt.Errorf("space of the volume: %+v", u)
				}
				return err
			})
		},
		End: func(ctx context.Context, l *sim.Lab) error {
			return steps(
				func() error { return l.Expect(ctx, "app", filesystem.file(c.Name), "looked at") },
				func() error { return l.DeletePod(ctx, "app") },
				func() error { return l.DeleteSnapshot(ctx, "cut") },
				func() error { return l.DeletePVC(ctx, c.Name) },
			)
		},
	})
}

// questions are asked of the driver by hand. What it can't do it says
// (Unimplemented would be asked for ever), so each looks at the capability first.
var questions = []struct {
	about string
	ask   func(ctx context.Context, l *sim.Lab, a sim.Asker, pvc string) error
}{
	{"identity", func(ctx context.Context, l *sim.Lab, a sim.Asker, _ string) error {
		r, err := a.Identity.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
		if err == nil && r.GetName() != l.DriverName() {
			err = fmt.Errorf("the driver says that it is %q", r.GetName())
		}
		return err
	}},
	{"readiness", func(ctx context.Context, _ *sim.Lab, a sim.Asker, _ string) error {
		r, err := a.Identity.Probe(ctx, &csi.ProbeRequest{})
		if err == nil && r.GetReady() != nil && !r.GetReady().GetValue() {
			err = fmt.Errorf("the driver says that it is not ready")
		}
		return err
	}},
	{"space for volumes", func(ctx context.Context, _ *sim.Lab, a sim.Asker, _ string) error {
		if can, err := able(ctx, a, csi.ControllerServiceCapability_RPC_GET_CAPACITY); !can {
			return err
		}
		r, err := a.GetCapacity(ctx, &csi.GetCapacityRequest{})
		if err == nil && r.GetAvailableCapacity() <= 0 {
			err = fmt.Errorf("%d bytes", r.GetAvailableCapacity())
		}
		return err
	}},
	{"all volumes", func(ctx context.Context, l *sim.Lab, a sim.Asker, pvc string) error {
		r, err := a.ListVolumes(ctx, &csi.ListVolumesRequest{})
		if err != nil {
			return err
		}
		for _, e := range r.GetEntries() {
			if e.GetVolume().GetVolumeId() == l.VolumeID(pvc) {
				return nil
			}
		}
		return fmt.Errorf("the volume of %s is not among %d", pvc, len(r.GetEntries()))
	}},
	{"one volume", func(ctx context.Context, l *sim.Lab, a sim.Asker, pvc string) error {
		if can, err := able(ctx, a, csi.ControllerServiceCapability_RPC_GET_VOLUME); !can {
			return err
		}
		r, err := a.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: l.VolumeID(pvc)})
		if err == nil && len(r.GetStatus().GetPublishedNodeIds()) != 1 {
			err = fmt.Errorf("it is on nodes %q", r.GetStatus().GetPublishedNodeIds())
		}
		return err
	}},
	{"what a volume can", func(ctx context.Context, l *sim.Lab, a sim.Asker, pvc string) error {
		r, err := a.ValidateVolumeCapabilities(ctx, &csi.ValidateVolumeCapabilitiesRequest{VolumeId: l.VolumeID(pvc), Secrets: a.Secrets,
			VolumeCapabilities: []*csi.VolumeCapability{{
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
				AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4"}}}}})
		if err == nil && r.GetConfirmed() == nil {
			err = fmt.Errorf("not confirmed: %s", r.GetMessage())
		}
		return err
	}},
	{"snapshots", func(ctx context.Context, l *sim.Lab, a sim.Asker, pvc string) error {
		id := snapshotID(l, "cut")
		r, err := a.ListSnapshots(ctx, &csi.ListSnapshotsRequest{SnapshotId: id, Secrets: a.Secrets})
		if err == nil && (len(r.GetEntries()) != 1 || r.GetEntries()[0].GetSnapshot().GetSourceVolumeId() != l.VolumeID(pvc)) {
			err = fmt.Errorf("snapshot %s of %s: %v", id, pvc, r.GetEntries())
		}
		return err
	}},
	{"a change", func(ctx context.Context, l *sim.Lab, a sim.Asker, pvc string) error {
		if can, err := able(ctx, a, csi.ControllerServiceCapability_RPC_MODIFY_VOLUME); !can {
			return err
		}
		_, err := a.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{VolumeId: l.VolumeID(pvc), Secrets: a.Secrets,
			MutableParameters: map[string]string{"description": "looked at"}})
		return err
	}},
	{"groups", func(ctx context.Context, l *sim.Lab, a sim.Asker, _ string) error {
		r, err := a.Identity.GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
		if err != nil || !slices.ContainsFunc(r.GetCapabilities(), func(c *csi.PluginCapability) bool {
			return c.GetService().GetType() == csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE
		}) {
			return err
		}
		_, err = a.Groups.GroupControllerGetCapabilities(ctx, &csi.GroupControllerGetCapabilitiesRequest{})
		return err
	}},
}

func able(ctx context.Context, a sim.Asker, t csi.ControllerServiceCapability_RPC_Type) (bool, error) {
	r, err := a.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	return slices.ContainsFunc(r.GetCapabilities(), func(c *csi.ControllerServiceCapability) bool { return c.GetRpc().GetType() == t }), err
}

// snapshotID is the driver's id of a VolumeSnapshot, or "".
func snapshotID(l *sim.Lab, name string) string {
	s, err := store.Get[snapshotv1.VolumeSnapshot](l.Client(), sim.Namespace, name)
	if err != nil || s.Status == nil || s.Status.BoundVolumeSnapshotContentName == nil {
		return ""
	}
	o, err := store.Get[snapshotv1.VolumeSnapshotContent](l.Client(), "", *s.Status.BoundVolumeSnapshotContentName)
	if err != nil || o.Status == nil || o.Status.SnapshotHandle == nil {
		return ""
	}
	return *o.Status.SnapshotHandle
}
