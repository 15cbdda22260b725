// Package labfile reads lab.yaml: which vCenters a lab has, what is in them,
// and which nodes. It is strict: a field that is unknown, given twice or of the
// wrong type is an error, and all errors are told at once, each with its place
// and what is allowed there. docs/lab-yaml.md describes the fields; it and the
// JSON Schema are made from the types here.
package labfile

import "github.com/csilab/csilab/sim/yamlfile"

// APIVersion and Kind that a file must have.
const (
	APIVersion = "csilab.dev/v1alpha1"
	Kind       = "Lab"
)

// The tags of the fields below are those of yamlfile. Forms are name (of an
// inventory object), user, version, address, object (of an array), position (of a
// port), ip, iqn and wwpn.

// Lab is what a file says.
type Lab struct {
	APIVersion string `yaml:"apiVersion" need:"yes" enum:"csilab.dev/v1alpha1" doc:"version of this format"`
	Kind       string `yaml:"kind" need:"yes" enum:"Lab" doc:"what the file is"`
	Seed       uint64 `yaml:"seed" default:"1" min:"1" doc:"seed of all identities and draws"`
	Host       string `yaml:"host" enum:"auto|real|memory" default:"auto" doc:"hosts of the nodes: real (root on Linux), memory, or auto; csilab run only"`
	Timers     string `yaml:"timers" enum:"fast|real" default:"fast" doc:"timers of kubelets and controllers; csilab run only"`
	MaxVolumes int    `yaml:"maxVolumesPerNode" default:"59" min:"1" max:"255" doc:"how many volumes each node says it takes; csilab run only"`

	VCenters  []VCenter `yaml:"vcenters" max:"5" default:"one, vc-1" doc:"the vCenters; several need zones, by which the driver places volumes"`
	Arrays    []Array   `yaml:"arrays" max:"8" default:"none" doc:"arrays, with a storage provider (CSP) before them; with arrays and no vcenters, there is no vCenter"`
	Pairs     []Pair    `yaml:"pairs" doc:"arrays that can copy to each other"`
	CSPListen string    `yaml:"cspListen" form:"address" default:"a free port of 127.0.0.1" doc:"HOST:PORT of the storage provider; csilab serve only"`
	Nodes     []Node    `yaml:"nodes" max:"64" default:"node-1 and node-2" doc:"the nodes: a VM each"`
}

// VCenter is one vCenter.
type VCenter struct {
	Name    string `yaml:"name" need:"yes" form:"name" doc:"name in the lab, unique"`
	Version string `yaml:"version" form:"version" default:"8.0.3" doc:"what it says it is"`
	Listen  string `yaml:"listen" form:"address" default:"a free port of 127.0.0.1, .2 for the second and so on" doc:"HOST:PORT to serve on; port 0 picks a free one; the driver tells vCenters apart by host; csilab serve only"`

	User          string `yaml:"user" form:"user" default:"administrator@vsphere.local" doc:"the user that the driver logs in as"`
	Password      string `yaml:"password" min:"1" default:"derived from the seed" doc:"its password"`
	Users         []User `yaml:"users" doc:"who may log in too"`
	MaxSessions   int    `yaml:"maxSessions" min:"1" default:"3000" doc:"how many sessions there may be"`
	IdleTimeout   int64  `yaml:"idleTimeout" unit:"duration" min:"1000000" default:"30m" doc:"ends a session that has made no call for so long"`
	SnapshotLimit int    `yaml:"snapshotLimit" min:"1" max:"32" default:"32" doc:"snapshots per volume"`
	DenseSlots    bool   `yaml:"denseSlots" default:"false" doc:"64 disks on a paravirtual controller instead of 15; from version 8.0 on"`

	TaskLatency   map[string]int64 `yaml:"taskLatency" unit:"duration" min:"0" default:"none" doc:"how long tasks take, by method (e.g. CnsCreateVolume); default is for all others"`
	TaskRetention int64            `yaml:"taskRetention" unit:"duration" min:"1000000" default:"10m" doc:"how long a finished task can be seen"`

	Datacenters []Datacenter `yaml:"datacenters" default:"DC0, with a cluster for each zone of the nodes" doc:"the datacenters"`
	Datastores  []Datastore  `yaml:"datastores" default:"datastore-1 and datastore-2 in each datacenter" doc:"the datastores"`
	Policies    []Policy     `yaml:"policies" default:"the vSAN default policy and one that all datastores satisfy" doc:"the storage policies"`
}

// User of a vCenter.
type User struct {
	Name     string   `yaml:"name" need:"yes" form:"user" doc:"user@domain"`
	Password string   `yaml:"password" need:"yes" min:"1" doc:"its password"`
	Role     string   `yaml:"role" enum:"Admin|ReadOnly|NoAccess|CSI" default:"none: can't log in" doc:"role on the whole inventory; CSI is what the vSphere CSI driver's documentation asks for"`
	Groups   []string `yaml:"groups" doc:"groups that it is in"`
}

// Datacenter of a vCenter.
type Datacenter struct {
	Name     string    `yaml:"name" need:"yes" form:"name" doc:"unique in the vCenter"`
	Zone     string    `yaml:"zone" form:"name" doc:"tag of category k8s-zone"`
	Region   string    `yaml:"region" form:"name" doc:"tag of category k8s-region"`
	Clusters []Cluster `yaml:"clusters" default:"one, <name>_C0" doc:"its clusters"`
}

// Cluster of hosts.
type Cluster struct {
	Name   string `yaml:"name" need:"yes" form:"name" doc:"unique in the datacenter"`
	Zone   string `yaml:"zone" form:"name" doc:"tag; goes before the datacenter's"`
	Region string `yaml:"region" form:"name" doc:"tag; goes before the datacenter's"`
	Hosts  []Host `yaml:"hosts" default:"two, <name>_H0 and <name>_H1" doc:"its hosts"`
}

// Host of a cluster.
type Host struct {
	Name   string `yaml:"name" need:"yes" form:"name" doc:"unique in the vCenter"`
	Zone   string `yaml:"zone" form:"name" doc:"tag; goes before the cluster's"`
	Region string `yaml:"region" form:"name" doc:"tag; goes before the cluster's"`
}

// Datastore of a datacenter.
type Datastore struct {
	Name        string   `yaml:"name" need:"yes" form:"name" doc:"unique in the datacenter"`
	Datacenter  string   `yaml:"datacenter" form:"name" default:"the first" doc:"where it lies"`
	Type        string   `yaml:"type" enum:"VMFS|NFS|NFS41|vsan|VVOL" default:"VMFS" doc:"its kind"`
	Capacity    int64    `yaml:"capacity" unit:"size" min:"1048576" default:"1Ti" doc:"its size, e.g. 500Gi"`
	Thick       bool     `yaml:"thick" default:"false" doc:"a disk takes its whole size when it is made, not only what is written"`
	FileService *bool    `yaml:"fileService" default:"true" doc:"vSAN file service, for file volumes; type vsan only"`
	Zones       []string `yaml:"zones" doc:"zones whose hosts mount it; with zones, clusters and hosts all left out, all hosts of the datacenter do"`
	Clusters    []string `yaml:"clusters" doc:"clusters whose hosts mount it"`
	Hosts       []string `yaml:"hosts" doc:"hosts that mount it"`
}

// Policy is a storage policy.
type Policy struct {
	Name        string   `yaml:"name" need:"yes" min:"1" doc:"unique in the vCenter"`
	Description string   `yaml:"description" doc:"any text"`
	Types       []string `yaml:"types" enum:"VMFS|NFS|NFS41|vsan|VVOL" default:"all" doc:"types of datastores that satisfy it"`
	Datastores  []string `yaml:"datastores" default:"all" doc:"datastores that satisfy it: by name, or as datacenter/name where that is not the first datacenter"`
}

// Node is one node, or several.
type Node struct {
	Name       string `yaml:"name" need:"yes" form:"name" doc:"its name, unique in the lab; with count the names are <name>-1, <name>-2, …"`
	Count      int    `yaml:"count" min:"1" max:"64" default:"one, of that name" doc:"how many there are"`
	VCenter    string `yaml:"vcenter" form:"name" default:"the one, or the one that has the zone" doc:"where its VM is"`
	Datacenter string `yaml:"datacenter" form:"name" default:"the first that has a place" doc:"where its VM is"`
	Cluster    string `yaml:"cluster" form:"name" default:"the first that has a place" doc:"where its VM is"`
	Zone       string `yaml:"zone" form:"name" doc:"zone of its host; without datacenters each zone gets a cluster"`
	Region     string `yaml:"region" form:"name" doc:"region of its zone; only without datacenters"`
	PoweredOff bool   `yaml:"poweredOff" default:"false" doc:"its VM is off at first; csilab serve only"`
	FreeSlots  *int   `yaml:"freeSlots" min:"0" max:"59" default:"59" doc:"how many disks its VM takes"`
}

// Problem is one thing that is wrong in a file.
type Problem = yamlfile.Problem

// Problems are all that is wrong in a file, by place.
type Problems = yamlfile.Problems

// Load reads a file. What is wrong with its content is Problems.
func Load(path string) (*Lab, error) {
	b, err := yamlfile.Read(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, b)
}
