package sim

import (
	"context"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csilab/csilab/driver"
	"github.com/csilab/csilab/fixtures"
	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/hop"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/invariant"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

// backend is the storage system under a lab's driver, with what the driver and
// the nodes need to reach it.
type backend interface {
	// start starts it; close ends it, also half started.
	start(ctx context.Context) error
	close()
	// machines are what becomes nodes, once it is started.
	machines() []machine

	// objects are those that exist before anybody asks for a volume, e.g. the
	// Secret with the password. providerID is of a node's Node object.
	objects() []store.Object
	providerID(n *Node) string
	// secret is what requests to the driver bring; nil: nothing.
	secret() map[string]string
	// controller and node complete the driver's configuration; nodeArgs are the
	// flags for the same, of a driver that is a process.
	controller(c *driver.Config) error
	node(n *Node, c *driver.Config)
	nodeArgs(n *Node) []string

	// volumes, snapshots and exports are what it has, with the ids that CSI uses;
	// exportsOf are those of one volume.
	volumes() []volume
	snapshots() []snapshot
	exports() []invariant.Export
	exportsOf(volumeID string) []invariant.Export
	// content opens what a node's disk with this serial holds, and names the
	// volume. No disk is false.
	content(n *Node, serial string) (volumeID string, img disk.Image, ok bool)
	// image names what a node reads of a volume, for its damage; open opens the
	// content of a volume itself, attached or not.
	image(volumeID string) (string, error)
	open(volumeID string) (disk.Image, error)
	// leaks are what a driver must not leave there, e.g. sessions.
	leaks() []string

	// makeVolume, removeVolume and pullDisk are an administrator's doing.
	makeVolume(ctx context.Context, name string, bytes int64) (id string, err error)
	removeVolume(ctx context.Context, id string) error
	// loseVolume deletes one with all that hangs on it.
	loseVolume(ctx context.Context, id string) error
	// pullDisk comes back when the node has lost it.
	pullDisk(ctx context.Context, n *Node, volumeID string) error
	// killSessions ends the sessions of the driver and of what stands between.
	killSessions()
	// rotatePassword changes the driver's password at the backend, and ends all
	// sessions; redeploy tells the driver.
	rotatePassword(ctx context.Context, password string) error
	redeploy(ctx context.Context) error
	// powerOff, powerOn and destroy are a machine's.
	powerOff(n *Node) error
	powerOn(n *Node) error
	destroy(n *Node) error
}

// machine is what becomes a node.
type machine struct {
	name, uuid, zone, region string
	// bios is what the node shows of itself; san is nil where disks come another way.
	bios     string
	san      host.SAN
	files    *host.FileServers // nil: none
	adapters host.Adapters
}

// volume and snapshot are what a backend has, as an invariant sees it.
type volume struct {
	id, name string
	bytes    int64
	ours     bool // made by the lab's driver
}

type snapshot struct {
	id, volume string
	ours       bool
}

// facts are what is fixed about a backend.
type facts struct {
	driver  string     // name of the CSI driver
	hop     ledger.Hop // between driver and backend
	ops     Operations
	serial  string // key of the publish context
	zone    string // key of the topology
	classes string // manifest of the classes that the scenarios use
	unit    int64  // sizes are multiples of it, in bytes
	least   int64  // the smallest volume, in bytes
}

// Operations are the names that the ledger has for what a driver asks of its
// backend.
type Operations struct{ Create, Delete, Attach, Detach, Snapshot, Expand string }

// The backends.
const (
	VSphere = "vsphere"
	HPE     = "hpe"
)

var backends = map[string]facts{
	VSphere: {
		driver: driver.Name(driver.VSphere), hop: ledger.VCenter, serial: "diskUUID", zone: "topology.csi.vmware.com/k8s-zone", classes: "classes",
		ops:  Operations{"CnsCreateVolume", "CnsDeleteVolume", "CnsAttachVolume", "CnsDetachVolume", "CnsCreateSnapshots", "CnsExtendVolume"},
		unit: 1 << 20, least: 1 << 20,
	},
	HPE: {
		driver: driver.Name(driver.HPE), hop: ledger.CSP, serial: "serialNumber", zone: "csi.hpe.com/zone", classes: "classes-hpe",
		ops: Operations{"POST /volumes", "DELETE /volumes/{id}", "PUT /volumes/{id}/actions/publish", "PUT /volumes/{id}/actions/unpublish",
			"POST /snapshots", "PUT /volumes/{id}"},
		unit: array.UnitMiB << 20, least: array.MinSizeMiB << 20,
	},
}

// facts of the lab's backend.
func (l *Lab) facts() facts { return backends[l.opts.Backend] }

// Backend is vsphere or hpe.
func (l *Lab) Backend() string { return l.opts.Backend }

// DriverName is the name of the CSI driver in the lab.
func (l *Lab) DriverName() string { return l.facts().driver }

// StorageHop is the hop between the driver and its backend.
func (l *Lab) StorageHop() ledger.Hop { return l.facts().hop }

// Operations are the names of what the driver asks of its backend.
func (l *Lab) Operations() Operations { return l.facts().ops }

// Classes is a manifest with the classes that the scenarios use.
func (l *Lab) Classes() string {
	m := fixtures.Manifest(l.facts().classes)
	if l.opts.Protocol != "" {
		m = strings.ReplaceAll(m, "accessProtocol: iscsi", "accessProtocol: "+l.opts.Protocol)
	}
	return m
}

// pluginPaths are the driver's on each node.
type pluginPaths struct{ dir, socket, topology, registration string }

func (l *Lab) plugin() pluginPaths { return pluginPathsOf(l.DriverName()) }

func pluginPathsOf(name string) pluginPaths {
	dir := kubeletRoot + "/plugins/" + name
	return pluginPaths{dir, dir + "/csi.sock", dir + "/topology", kubeletRoot + "/plugins_registry/" + name + "-reg.sock"}
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
