package sim

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"slices"

	"github.com/vmware/govmomi/cns"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/session"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/soap"

	"github.com/csilab/csilab/driver"
	dvsphere "github.com/csilab/csilab/driver/vsphere"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/invariant"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/vcenter"
	core "github.com/csilab/csilab/sim/vcenter/cns"
)

// clusterID marks the volumes that the lab's driver made.
const clusterID = "csilab"

// vsphere is a lab's vCenters. Nodes are VMs in them.
type vsphere struct {
	l      *Lab
	sites  []site
	placed map[string]*vcenter.VCenter // that has a node's VM
	order  []string
}

var _ backend = (*vsphere)(nil)

// site is a vCenter that runs.
type site struct {
	name string
	*vcenter.VCenter
}

func (b *vsphere) close() {
	for _, s := range b.sites {
		s.Close()
	}
}

func (b *vsphere) machines() (out []machine) {
	for _, name := range b.order {
		vc := b.placed[name]
		m := machine{name: name, uuid: vc.VMUUID(name), bios: vc.VMUUID(name)}
		m.zone, m.region = vc.Topology(name)
		out = append(out, m)
	}
	return out
}

func (b *vsphere) objects() []store.Object { return nil }

func (b *vsphere) secret() map[string]string { return nil }

func (b *vsphere) providerID(n *Node) string { return "vsphere://" + n.uuid }

// conf is the driver's configuration for all vCenters.
func (b *vsphere) conf() string {
	var vs []*vcenter.VCenter
	for _, s := range b.sites {
		vs = append(vs, s.VCenter)
	}
	return vcenter.Conf(clusterID, vs...)
}

func (b *vsphere) controller(c *driver.Config) error {
	if b.l.opts.PinCertificate {
		c.ConfigFile = b.pinnedFile()
		if _, err := os.Stat(c.ConfigFile); err == nil {
			return nil
		}
		return b.writePinned(false)
	}
	conf, err := dvsphere.ParseConfig([]byte(b.conf()), nil)
	if err != nil {
		return fmt.Errorf("the vCenter's own configuration: %w", err)
	}
	at := []*dvsphere.VCenter{&conf.VCenter}
	for i := range conf.Others {
		at = append(at, &conf.Others[i])
	}
	for i, v := range at {
		if b.l.opts.Bubble {
			v.Scheme = "http" // TLS has nothing to protect in memory
		} else {
			v.Insecure, v.Thumbprint = false, b.sites[i].Thumbprint()
		}
	}
	c.VSphere = &conf
	return nil
}

func (b *vsphere) node(*Node, *driver.Config) {}

func (b *vsphere) nodeArgs(*Node) []string { return nil }

func (b *vsphere) volumes() (out []volume) {
	for _, s := range b.sites {
		for _, v := range s.Volumes() {
			if v.Lost {
				continue // on record until CNS syncs: its disk is gone
			}
			out = append(out, volume{v.ID, v.Name, v.CapacityMB << 20, v.Metadata.Cluster.ID == clusterID})
		}
	}
	return out
}

func (b *vsphere) snapshots() (out []snapshot) {
	for _, s := range b.sites {
		for _, x := range s.Snapshots() {
			out = append(out, snapshot{x.Volume + "+" + x.ID, x.Volume, true})
		}
	}
	return out
}

func (b *vsphere) exports() (out []invariant.Export) {
	for _, s := range b.sites {
		for vm, disks := range s.Disks() {
			n := b.l.nodeByUUID(vm)
			if n == nil {
				continue // a VM that an administrator made
			}
			for _, d := range disks {
				out = append(out, invariant.Export{VolumeID: d.VolumeID, Node: n.Name, Serial: d.DiskUUID})
			}
		}
	}
	return out
}

func (b *vsphere) exportsOf(id string) []invariant.Export {
	return slices.DeleteFunc(b.exports(), func(e invariant.Export) bool { return e.VolumeID != id })
}

func (b *vsphere) content(n *Node, serial string) (string, disk.Image, bool) {
	n.mu.Lock()
	p, ok := n.images[serial]
	n.mu.Unlock()
	if !ok {
		return "", nil, false
	}
	img, err := b.l.disks.Open(p.id) // an image has its volume's id
	return p.id, img, err == nil
}

// leaks: each life of the driver may have one session: a killed one can't log
// out, its session stays until it idles out. So does one whose login's answer
// was lost, since its client never learns its key.
func (b *vsphere) leaks() (out []string) {
	for _, s := range b.sites {
		n, lives := s.Sessions("driver-controller"), b.l.Starts("driver-controller")
		if n <= lives {
			continue
		}
		unknown := 0
		for _, e := range b.l.Ledger.Entries(ledger.OnHop(ledger.VCenter, "Login")) {
			if e.Component == "driver-controller" && e.Outcome == ledger.MaybeApplied {
				unknown++
			}
		}
		if n > lives+unknown {
			out = append(out, fmt.Sprintf("the vCenter %s has %d sessions of the driver, which was started %d times", s.name, n, lives))
		}
	}
	return out
}

// asAdmin does something with the API of a vCenter as its administrator.
func (b *vsphere) asAdmin(ctx context.Context, on *vcenter.VCenter, do func(context.Context, *vim25.Client) error) error {
	conf, err := dvsphere.ParseConfig([]byte(on.Conf(clusterID)), nil)
	if err != nil {
		return err
	}
	sc := soap.NewClient(on.URL(), true)
	sc.UserAgent = "csilab/admin" // how the ledger names it
	sc.DefaultTransport().Proxy = nil
	sc.DefaultTransport().DialContext = b.l.net.DialContext
	// The client's own dialer for TLS would pass the lab's network by.
	sc.DefaultTransport().DialTLSContext = nil
	defer sc.DefaultTransport().CloseIdleConnections()
	vc, err := vim25.NewClient(ctx, sc)
	if err != nil {
		return err
	}
	m := session.NewManager(vc)
	if err := m.Login(ctx, url.UserPassword(conf.VCenter.User, conf.VCenter.Password)); err != nil {
		return err
	}
	defer m.Logout(context.WithoutCancel(ctx))
	return do(ctx, vc)
}

// admin runs a task of CNS on one volume as an administrator of a vCenter.
func (b *vsphere) admin(ctx context.Context, on *vcenter.VCenter, do func(context.Context, *cns.Client) (*object.Task, error)) (res cnstypes.BaseCnsVolumeOperationResult, err error) {
	err = b.asAdmin(ctx, on, func(ctx context.Context, vc *vim25.Client) error {
		c, err := cns.NewClient(ctx, vc)
		if err != nil {
			return err
		}
		task, err := do(ctx, c)
		if err != nil {
			return err
		}
		res, err = resultOf(ctx, task)
		return err
	})
	return res, err
}

// resultOf waits for a task of CNS on one volume.
func resultOf(ctx context.Context, task *object.Task) (cnstypes.BaseCnsVolumeOperationResult, error) {
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

// makeVolume makes a volume in the first vCenter's CNS.
func (b *vsphere) makeVolume(ctx context.Context, name string, bytes int64) (string, error) {
	r, err := b.admin(ctx, b.sites[0].VCenter, func(ctx context.Context, c *cns.Client) (*object.Task, error) {
		return c.CreateVolume(ctx, []cnstypes.CnsVolumeCreateSpec{{
			Name: name, VolumeType: string(cnstypes.CnsVolumeTypeBlock),
			Metadata: cnstypes.CnsVolumeMetadata{ContainerCluster: cnstypes.CnsContainerCluster{
				ClusterType: string(cnstypes.CnsClusterTypeKubernetes), ClusterId: "by-hand", ClusterFlavor: string(cnstypes.CnsClusterFlavorVanilla)}},
			BackingObjectDetails: &cnstypes.CnsBlockBackingDetails{CnsBackingObjectDetails: cnstypes.CnsBackingObjectDetails{CapacityInMb: bytes >> 20}},
		}})
	})
	if err != nil {
		return "", err
	}
	return r.GetCnsVolumeOperationResult().VolumeId.Id, nil
}

func (b *vsphere) removeVolume(ctx context.Context, id string) error {
	on := b.sites[0].VCenter
	if s := b.siteOf(id); s != nil {
		on = s.VCenter
	}
	_, err := b.admin(ctx, on, func(ctx context.Context, c *cns.Client) (*object.Task, error) {
		return c.DeleteVolume(ctx, []cnstypes.CnsVolumeId{{Id: id}}, true)
	})
	return err
}

// siteOf is the vCenter that has a volume, or nil.
func (b *vsphere) siteOf(volumeID string) *site {
	for i, s := range b.sites {
		if volumeID != "" && slices.ContainsFunc(s.Volumes(), func(v core.Volume) bool { return v.ID == volumeID }) {
			return &b.sites[i]
		}
	}
	return nil
}

func (b *vsphere) pullDisk(ctx context.Context, n *Node, volumeID string) error {
	vc, serial := b.placed[n.Name], ""
	for _, d := range vc.Disks()[n.uuid] {
		if d.VolumeID == volumeID {
			serial = d.DiskUUID
		}
	}
	if err := vc.PullDisk(n.Name, volumeID); err != nil {
		return err
	}
	return b.l.poll(ctx, fmt.Sprintf("%s has lost disk %s", n.Name, serial), func() (string, bool) {
		disks := n.host.Disks()
		return fmt.Sprintf("it has %q", disks), !slices.Contains(disks, serial)
	})
}

func (b *vsphere) killSessions() {
	for _, s := range b.sites {
		s.KillSessions()
	}
}

func (b *vsphere) rotatePassword(_ context.Context, password string) error {
	for _, s := range b.sites {
		s.SetPassword(password)
		s.KillSessions()
	}
	return nil
}

// redeploy starts the driver anew: it reads the vCenter's configuration then.
// One that has it from a file finds the file changed.
func (b *vsphere) redeploy(context.Context) error {
	if b.l.opts.PinCertificate {
		return b.writePinned(true)
	}
	b.l.crash("driver-controller") // a deployment does that, nobody's hand
	return nil
}

func (b *vsphere) powerOff(n *Node) error { return b.placed[n.Name].PowerOff(n.Name) }
func (b *vsphere) powerOn(n *Node) error  { return b.placed[n.Name].PowerOn(n.Name) }
func (b *vsphere) destroy(n *Node) error  { return b.placed[n.Name].DeleteVM(n.Name) }
