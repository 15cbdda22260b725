// Package control is the API by which others look inside running vCenters
// (volumes, attachments, tasks, sessions, datastores) and arrays (arrays, vvs,
// copies, vluns, hosts, …) as JSON over HTTP, for who has the token. It changes
// nothing of them but their fault plan. Where there are real nodes beside them,
// programs can be run in those.
package control

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// APIVersion of what is served. Fields of it are not renamed or removed.
const APIVersion = "csilab.dev/v1alpha1"

// List is the answer to a question: all of one kind, of all vCenters or arrays.
type List[T any] struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"` // e.g. VolumeList
	Items      []T    `json:"items"`
}

// Volume of CNS.
type Volume struct {
	VCenter    string `json:"vcenter"`
	ID         string `json:"id"`
	Name       string `json:"name"`
	Type       string `json:"type"` // BLOCK, FILE
	CapacityMB int64  `json:"capacityMB"`
	Datastore  string `json:"datastore"`
	// Policy is the id of the storage policy.
	Policy string `json:"policy,omitempty"`
	// Clusters are the ids of the container clusters that use it.
	Clusters  []string  `json:"clusters,omitempty"`
	Snapshots int       `json:"snapshots"`
	Nodes     []string  `json:"nodes,omitempty"` // that it is attached to
	Created   time.Time `json:"created"`
}

// Attachment of a volume to a node's VM.
type Attachment struct {
	VCenter    string `json:"vcenter"`
	Volume     string `json:"volume"` // id
	Name       string `json:"name"`   // of the volume
	Node       string `json:"node"`
	VM         string `json:"vm"`       // managed object id
	DiskUUID   string `json:"diskUUID"` // 32 lower case hex digits, as the node sees it
	Controller int32  `json:"controller"`
	Bus        int32  `json:"bus"`
	Unit       int32  `json:"unit"`
}

// Task that clients of the vCenter can see.
type Task struct {
	VCenter  string `json:"vcenter"`
	ID       string `json:"id"`
	Op       string `json:"op"`               // method of the API
	Volume   string `json:"volume,omitempty"` // id, or the name for a create
	Snapshot string `json:"snapshot,omitempty"`
	Node     string `json:"node,omitempty"`
	Entity   string `json:"entity"`
	State    string `json:"state"`    // queued, running, success, error
	Progress int32  `json:"progress"` // percent
	OpID     string `json:"opID,omitempty"`
	User     string `json:"user,omitempty"`
	// Error is the message of the task's fault. A volume that was refused in a
	// task that succeeded is in its result, not here.
	Error     string     `json:"error,omitempty"`
	Queued    time.Time  `json:"queued"`
	Completed *time.Time `json:"completed,omitempty"`
}

// Session of a client. It names no cookie: it can't be used with it.
type Session struct {
	VCenter    string    `json:"vcenter"`
	Key        string    `json:"key"`
	Kind       string    `json:"kind"` // SOAP, REST
	User       string    `json:"user"`
	Component  string    `json:"component"` // as the ledger names the caller
	Agent      string    `json:"agent"`
	Addr       string    `json:"addr"`
	LoggedIn   time.Time `json:"loggedIn"`
	LastActive time.Time `json:"lastActive"`
	Calls      int       `json:"calls"`
	Running    int       `json:"running"` // calls now
}

// Datastore of a vCenter.
type Datastore struct {
	VCenter    string `json:"vcenter"`
	Datacenter string `json:"datacenter"`
	Name       string `json:"name"`
	Ref        string `json:"ref"` // managed object id
	Type       string `json:"type"`
	URL        string `json:"url"`
	// CapacityBytes and FreeBytes as the vCenter shows them.
	CapacityBytes int64    `json:"capacityBytes"`
	FreeBytes     int64    `json:"freeBytes"`
	Accessible    bool     `json:"accessible"`
	Maintenance   string   `json:"maintenance"` // normal, enteringMaintenance, inMaintenance
	Hosts         []string `json:"hosts"`
	Volumes       int      `json:"volumes"` // of CNS
}

// Kinds are what can be asked for: what vCenters have, then what arrays have.
var Kinds = []string{"volumes", "attachments", "tasks", "sessions", "datastores",
	"arrays", "vvs", "copies", "vluns", "hosts", "hostsets", "volumesets", "cpgs", "shares", "ports", "rcgroups"}

// OfArrays says whether a kind is what arrays have.
func OfArrays(kind string) bool { return ofArrays[kind] != nil }

// CheckKind says what kinds there are when it is none.
func CheckKind(kind string) error {
	if slices.Contains(Kinds, kind) {
		return nil
	}
	return fmt.Errorf("%q is nothing to get; allowed: %s", kind, strings.Join(Kinds, ", "))
}
