package vcenter

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	govcns "github.com/vmware/govmomi/cns"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
	"github.com/vmware/govmomi/vsan"
	"github.com/vmware/govmomi/vsan/methods"
	vsantypes "github.com/vmware/govmomi/vsan/types"

	core "github.com/csilab/csilab/sim/vcenter/cns"
	"github.com/csilab/csilab/sim/vcenter/cnsface"
	"github.com/csilab/csilab/sim/vcenter/task"
)

// fileServiceSystem is where clients look for vSAN file service.
var fileServiceSystem = ref{Type: "VsanFileServiceSystem", Value: "vsan-cluster-file-service-system"}

// fileServiceDomain is the domain of every cluster's file service.
const fileServiceDomain = "csilab.invalid"

// vsanAPI is what the vsan endpoint offers beside CNS: how the clusters are
// configured, and their file services. A cluster that mounts a vSAN datastore
// is a vSAN cluster.
type vsanAPI struct {
	v *VCenter

	mu  sync.Mutex
	off map[ref]bool // clusters whose file service is switched off
}

func newVSAN(v *VCenter) *vsanAPI {
	a := &vsanAPI{v: v, off: map[ref]bool{}}
	for _, ds := range v.inv.datastores {
		if d, ok := v.datastoreConfig(ds.Self); ok && d.NoFileService {
			if z := a.home(ds.Self); z != nil {
				a.off[z.cluster.Self] = true
			}
		}
	}
	return a
}

// install puts the objects beside the CNS volume manager.
func (a *vsanAPI) install() {
	r := a.v.registry(govcns.Path)
	r.Put(&clusterConfigSystem{ref: vsan.VsanVcClusterConfigSystemInstance, a: a})
	r.Put(&vsanFileServices{ref: fileServiceSystem, a: a})
}

// home is the cluster whose vSAN a datastore is: the first that mounts it.
func (a *vsanAPI) home(ds ref) *zone {
	for _, z := range a.v.inv.zones {
		if slices.Contains(z.cluster.Datastore, ds) {
			return z
		}
	}
	return nil
}

// datastore is the vSAN datastore of a cluster.
func (a *vsanAPI) datastore(z *zone) (ref, bool) {
	for _, ds := range a.v.inv.datastores {
		if d, ok := a.v.datastoreConfig(ds.Self); ok && d.Type == "vsan" && a.home(ds.Self) == z {
			return ds.Self, true
		}
	}
	return ref{}, false
}

func (a *vsanAPI) enabled(z *zone) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.off[z.cluster.Self]
}

func (a *vsanAPI) enable(cluster ref, on bool) {
	a.mu.Lock()
	a.off[cluster] = !on
	a.mu.Unlock()
	a.v.face.StorageChanged()
}

// fileServer is one of a cluster's, of which there is one per host.
type fileServer struct{ address, name string }

// servers are the file servers of a cluster, running or not, the primary one
// first. The addresses are of those that RFC 2544 keeps for tests, so that
// nothing real is ever meant.
func (a *vsanAPI) servers(z *zone) (out []fileServer) {
	n := 0
	for _, other := range a.v.inv.zones {
		if other == z {
			break
		}
		n += len(other.hosts)
	}
	for i := range z.hosts {
		k := n + i
		out = append(out, fileServer{fmt.Sprintf("198.18.%d.%d", k/250%250, k%250+1), fmt.Sprintf("vsan-fs-%d.csilab.invalid", k+1)})
	}
	return out
}

// addresses are where the shares of a datastore are exported; none without a
// file service.
func (a *vsanAPI) addresses(ds ref) (out []string) {
	if d, ok := a.v.datastoreConfig(ds); !ok || d.Type != "vsan" {
		return nil
	}
	z := a.home(ds)
	if z == nil || !a.enabled(z) {
		return nil
	}
	for _, s := range a.servers(z) {
		out = append(out, s.address)
	}
	return out
}

// zoneOf finds a cluster.
func (a *vsanAPI) zoneOf(cluster ref) (*zone, types.BaseMethodFault) {
	for _, z := range a.v.inv.zones {
		if z.cluster.Self == cluster {
			return z, nil
		}
	}
	if a.v.vim.Get(cluster) == nil {
		return nil, &types.ManagedObjectNotFound{Obj: cluster}
	}
	return nil, &types.InvalidArgument{InvalidProperty: "cluster"}
}

// FileService switches the vSAN file service on or off that exports shares of
// a datastore. File volumes stay; new ones are refused while it is off.
func (v *VCenter) FileService(datastore string, on bool) error {
	ds, err := v.datastoreOf(datastore)
	if err != nil {
		return err
	}
	if d, _ := v.datastoreConfig(ds.Self); d.Type != "vsan" {
		return fmt.Errorf("vcenter: datastore %q is of type %s: file services are vsan's", datastore, d.Type)
	}
	if z := v.vsan.home(ds.Self); z != nil {
		v.vsan.enable(z.cluster.Self, on)
	}
	return nil
}

// clusterConfigSystem is the VsanVcClusterConfigSystem object.
type clusterConfigSystem struct {
	ref
	optOut
	a *vsanAPI
}

// VsanClusterGetConfig tells whether a cluster has vSAN and its file service:
// the upstream driver asks before it makes file volumes, and needs Enabled to
// be set whatever it is.
func (s *clusterConfigSystem) VsanClusterGetConfig(_ *simulator.Context, req *vsantypes.VsanClusterGetConfig) soap.HasFault {
	z, f := s.a.zoneOf(req.Cluster)
	if f != nil {
		return &methods.VsanClusterGetConfigBody{Fault_: simulator.Fault("", f)}
	}
	return &methods.VsanClusterGetConfigBody{Res: &vsantypes.VsanClusterGetConfigResponse{Returnval: s.a.config(z)}}
}

func (a *vsanAPI) config(z *zone) (c vsantypes.VsanConfigInfoEx) {
	ds, ok := a.datastore(z)
	c.Enabled = &ok
	if !ok {
		return c
	}
	no := false
	c.DefaultConfig = &types.VsanClusterConfigInfoHostDefaultInfo{Uuid: uuidOf(a.v.cfg.Seed, "vsan cluster", a.v.inv.labels[ds]), AutoClaimStorage: &no, ChecksumEnabled: &no}
	c.UnmapConfig = &vsantypes.VsanUnmapConfig{}
	if !a.enabled(z) {
		c.FileServiceConfig = &vsantypes.VsanFileServiceConfig{}
		return c
	}
	fs := &vsantypes.VsanFileServiceConfig{Enabled: true, FileServerMemoryMB: 4096, FileServerCPUMhz: 4000}
	if n := z.center.network; n.Value != "" {
		fs.Network = &n
	}
	domain := vsantypes.VsanFileServiceDomainConfig{Name: fileServiceDomain, DnsServerAddresses: []string{"198.18.255.1"}, DnsSuffixes: []string{"csilab.invalid"}, Version: "8.0.3"}
	for i, x := range a.servers(z) {
		primary := i == 0
		domain.FileServerIpConfig = append(domain.FileServerIpConfig, vsantypes.VsanFileServiceIpConfig{
			HostIpConfig: types.HostIpConfig{IpAddress: x.address, SubnetMask: "255.255.0.0"}, Fqdn: x.name, IsPrimary: &primary, Gateway: "198.18.255.254",
		})
	}
	fs.Domains = []vsantypes.VsanFileServiceDomainConfig{domain}
	c.FileServiceConfig = fs
	return c
}

// VsanClusterReconfig switches the file service of a cluster on or off; the
// rest of the configuration is not simulated.
func (s *clusterConfigSystem) VsanClusterReconfig(ctx *simulator.Context, req *vsantypes.VsanClusterReconfig) soap.HasFault {
	refuse := func(f types.BaseMethodFault) soap.HasFault {
		return &methods.VsanClusterReconfigBody{Fault_: simulator.Fault("", f)}
	}
	z, f := s.a.zoneOf(req.Cluster)
	if f != nil {
		return refuse(f)
	}
	if _, ok := s.a.datastore(z); !ok || req.VsanReconfigSpec.FileServiceConfig == nil {
		return refuse(&types.NotSupported{})
	}
	on := req.VsanReconfigSpec.FileServiceConfig.Enabled
	const op = "VsanClusterReconfig"
	t := s.a.v.startTask(ctx, z.cluster, task.Job{
		Call: task.Call{Op: op}, Entity: z.cluster.Self, EntityName: z.cluster.Name, Name: op,
		DescriptionID: "com.vmware.vsan.clustermgmt.tasks.reconfigurecluster", // Unverified
	}, func(context.Context, *simulator.Context) (types.AnyType, types.BaseMethodFault) {
		s.a.enable(z.cluster.Self, on)
		return nil, nil
	})
	return &methods.VsanClusterReconfigBody{Res: &vsantypes.VsanClusterReconfigResponse{Returnval: t}}
}

// vsanFileServices is the VsanFileServiceSystem object.
type vsanFileServices struct {
	ref
	optOut
	a *vsanAPI
}

// VsanClusterQueryFileServiceHealthSummary tells how the file servers do.
func (s *vsanFileServices) VsanClusterQueryFileServiceHealthSummary(_ *simulator.Context, req *vsantypes.VsanClusterQueryFileServiceHealthSummary) soap.HasFault {
	z, f := s.a.zoneOf(req.Cluster)
	if f != nil {
		return &methods.VsanClusterQueryFileServiceHealthSummaryBody{Fault_: simulator.Fault("", f)}
	}
	_, vsanCluster := s.a.datastore(z)
	on := vsanCluster && s.a.enabled(z)
	sum := &vsantypes.VsanClusterFileServiceHealthSummary{OverallHealth: "green"}
	for _, h := range z.Hosts {
		sum.HostResults = append(sum.HostResults, vsantypes.VsanFileServiceHealthSummary{Hostname: h.Name, OverallHealth: "green", Enabled: &on})
	}
	return &methods.VsanClusterQueryFileServiceHealthSummaryBody{Res: &vsantypes.VsanClusterQueryFileServiceHealthSummaryResponse{Returnval: sum}}
}

// VsanClusterQueryFileShares lists the file shares of a cluster, or of all.
func (s *vsanFileServices) VsanClusterQueryFileShares(_ *simulator.Context, req *vsantypes.VsanClusterQueryFileShares) soap.HasFault {
	refuse := func(f types.BaseMethodFault) soap.HasFault {
		return &methods.VsanClusterQueryFileSharesBody{Fault_: simulator.Fault("", f)}
	}
	var z *zone
	if req.Cluster != nil {
		var f types.BaseMethodFault
		if z, f = s.a.zoneOf(*req.Cluster); f != nil {
			return refuse(f)
		}
	}
	q, skip := req.QuerySpec, 0
	if q.Offset != "" {
		n, err := strconv.Atoi(q.Offset)
		if err != nil || n < 0 {
			return refuse(&types.InvalidArgument{InvalidProperty: "querySpec.offset"})
		}
		skip = n
	}
	if q.Limit < 0 {
		return refuse(&types.InvalidArgument{InvalidProperty: "querySpec.limit"})
	}
	res := &vsantypes.FileShareQueryResult{}
	for _, v := range s.a.v.face.Shares() {
		name := strings.TrimPrefix(v.ID, core.SharePrefix)
		home := s.a.home(ref{Type: "Datastore", Value: v.Datastore})
		switch {
		case z != nil && home != z, len(q.Uuids) > 0 && !slices.Contains(q.Uuids, name), len(q.Names) > 0 && !slices.Contains(q.Names, name):
			continue
		}
		res.TotalShareCount++
		if res.TotalShareCount <= int64(skip) {
			continue
		}
		if q.Limit > 0 && int64(len(res.FileShares)) >= q.Limit {
			if res.NextOffset == "" {
				res.NextOffset = strconv.Itoa(skip + len(res.FileShares))
			}
			continue
		}
		cfg := &vsantypes.VsanFileShareConfig{
			Name: name, DomainName: fileServiceDomain, Quota: fmt.Sprintf("%dM", v.CapacityMB), Protocols: []string{"NFSv3", "NFSv4"}, NfsSecType: "SYS",
		}
		if v.Share.SoftQuotaMB > 0 {
			cfg.SoftQuota = fmt.Sprintf("%dM", v.Share.SoftQuotaMB)
		}
		for _, p := range v.Share.Permissions {
			cfg.Permission = append(cfg.Permission, vsantypes.VsanFileShareNetPermission{Ips: p.IPs, Permissions: string(p.Access), AllowRoot: &p.AllowRoot})
		}
		res.FileShares = append(res.FileShares, vsantypes.VsanFileShare{Uuid: name, Config: cfg, Runtime: &vsantypes.VsanFileShareRuntimeInfo{
			Address: v.Share.Server, AccessPoints: cnsface.Access(v), ManagedBy: "CNS", // Unverified: the form of quotas and ManagedBy
		}})
	}
	return &methods.VsanClusterQueryFileSharesBody{Res: &vsantypes.VsanClusterQueryFileSharesResponse{Returnval: res}}
}
