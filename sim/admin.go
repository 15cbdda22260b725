package sim

import (
	"context"
	"fmt"
	"net/url"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/vmware/govmomi/cns"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/session"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/soap"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/csilab/csilab/driver/vsphere"
	"github.com/csilab/csilab/sim/hop"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/vcenter"
	core "github.com/csilab/csilab/sim/vcenter/cns"
)

// clusterID marks the volumes that the lab's driver made.
const clusterID = "csilab"

// admin does something as an administrator of a vCenter.
func (l *Lab) admin(ctx context.Context, on *vcenter.VCenter, do func(context.Context, *cns.Client) (*object.Task, error)) (cnstypes.BaseCnsVolumeOperationResult, error) {
	conf, err := vsphere.ParseConfig([]byte(on.Conf(clusterID)), nil)
	if err != nil {
		return nil, err
	}
	sc := soap.NewClient(on.URL(), true)
	sc.UserAgent = "csilab/admin" // how the ledger names it
	sc.DefaultTransport().Proxy = nil
	sc.DefaultTransport().DialContext = l.net.DialContext
	// The client's own dialer for TLS would pass the lab's network by.
	sc.DefaultTransport().DialTLSContext = nil
	defer sc.DefaultTransport().CloseIdleConnections()
	vc, err := vim25.NewClient(ctx, sc)
	if err != nil {
		return nil, err
	}
	m := session.NewManager(vc)
	if err := m.Login(ctx, url.UserPassword(conf.VCenter.User, conf.VCenter.Password)); err != nil {
		return nil, err
	}
	defer m.Logout(context.WithoutCancel(ctx))
	c, err := cns.NewClient(ctx, vc)
	if err != nil {
		return nil, err
	}
	task, err := do(ctx, c)
	if err != nil {
		return nil, err
	}
	info, err := task.WaitForResultEx(ctx)
	if err != nil {
		return nil, err
	}
	batch, ok := info.Result.(cnstypes.CnsVolumeOperationBatchResult)
	if !ok || len(batch.VolumeResults) != 1 {
		return nil, fmt.Errorf("the task's result is %T, expected that of one volume", info.Result)
	}
	if f := batch.VolumeResults[0].GetCnsVolumeOperationResult().Fault; f != nil {
		return nil, fmt.Errorf("%T: %s", f.Fault, f.LocalizedMessage)
	}
	return batch.VolumeResults[0], nil
}

// MakeVolume makes a volume in the first vCenter's CNS by hand: no driver and no Kubernetes object
// knows it. It returns the volume's id.
func (l *Lab) MakeVolume(ctx context.Context, name, size string) (string, error) {
	q, err := resource.ParseQuantity(size)
	if err != nil {
		return "", fmt.Errorf("size %q: %w", size, err)
	}
	r, err := l.admin(ctx, l.vc, func(ctx context.Context, c *cns.Client) (*object.Task, error) {
		return c.CreateVolume(ctx, []cnstypes.CnsVolumeCreateSpec{{
			Name: name, VolumeType: string(cnstypes.CnsVolumeTypeBlock),
			Metadata: cnstypes.CnsVolumeMetadata{ContainerCluster: cnstypes.CnsContainerCluster{
				ClusterType: string(cnstypes.CnsClusterTypeKubernetes), ClusterId: "by-hand", ClusterFlavor: string(cnstypes.CnsClusterFlavorVanilla)}},
			BackingObjectDetails: &cnstypes.CnsBlockBackingDetails{CnsBackingObjectDetails: cnstypes.CnsBackingObjectDetails{CapacityInMb: q.Value() >> 20}},
		}})
	})
	if err != nil {
		return "", fmt.Errorf("make volume %s: %w", name, err)
	}
	return r.GetCnsVolumeOperationResult().VolumeId.Id, nil
}

// RemoveVolume deletes a volume in CNS by hand, with its disk.
func (l *Lab) RemoveVolume(ctx context.Context, id string) error {
	on := l.vc
	for _, s := range l.vcs {
		if slices.ContainsFunc(s.Volumes(), func(v core.Volume) bool { return v.ID == id }) {
			on = s.VCenter
		}
	}
	_, err := l.admin(ctx, on, func(ctx context.Context, c *cns.Client) (*object.Task, error) {
		return c.DeleteVolume(ctx, []cnstypes.CnsVolumeId{{Id: id}}, true)
	})
	if err != nil {
		return fmt.Errorf("remove volume %s: %w", id, err)
	}
	return nil
}

// OnBackend says whether the backend has a volume, or a snapshot as its
// handle names it.
func (l *Lab) OnBackend(id string) bool {
	for _, v := range l.volumes() {
		if v.ID == id {
			return true
		}
	}
	for _, s := range l.snapshots() {
		if s.Volume+"+"+s.ID == id {
			return true
		}
	}
	return false
}

// FreeSpace asks the driver how much space there is for new volumes, in bytes.
func (l *Lab) FreeSpace(ctx context.Context) (int64, error) {
	conn, err := hop.Dial(hop.Config{Network: l.net, Endpoint: l.controllerSocket(), Hop: ledger.CSI, Component: "user", In: l.in})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	r, err := csi.NewControllerClient(conn).GetCapacity(ctx, &csi.GetCapacityRequest{})
	return r.GetAvailableCapacity(), err
}

// RotatePassword changes the password of all vCenters and ends all sessions. The
// driver gets to know the new one when it is started anew, as a deployment
// whose secret has changed.
func (l *Lab) RotatePassword(password string) {
	for _, s := range l.vcs {
		s.SetPassword(password)
		s.KillSessions()
	}
}

// PullDisk takes the disk of a claim's volume off a node's VM by hand and
// waits until the node has lost it.
func (l *Lab) PullDisk(ctx context.Context, node, pvc string) error {
	n, id := l.node(node), l.VolumeID(pvc)
	if n == nil {
		return fmt.Errorf("no node %q", node)
	}
	serial := ""
	for _, d := range n.vc.Disks()[n.uuid] {
		if d.VolumeID == id {
			serial = d.DiskUUID
		}
	}
	if err := n.vc.PullDisk(node, id); err != nil {
		return err
	}
	return l.poll(ctx, fmt.Sprintf("%s has lost the disk of %s", node, pvc), func() (string, bool) {
		disks := n.host.Disks()
		return fmt.Sprintf("it has %q", disks), !slices.Contains(disks, serial)
	})
}
