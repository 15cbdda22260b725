package control

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/csilab/csilab/sim/san"
	"github.com/csilab/csilab/sim/vcenter"
	core "github.com/csilab/csilab/sim/vcenter/cns"
)

// Source is a vCenter with its name.
type Source struct {
	Name    string
	VCenter *vcenter.VCenter
}

// NewToken makes a token of 32 random bytes, in hex.
func NewToken() string {
	b := make([]byte, 32)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// Handler serves GET /v1alpha1/<kind>, with ?vcenter=NAME or ?array=NAME those
// of one, to requests with "Authorization: Bearer <token>". network is nil where
// there are no arrays, nodes where there are none: they have GET
// /v1alpha1/nodes, and POST /v1alpha1/nodes/NAME/exec, which runs programs.
func Handler(token string, sources []Source, network *san.SAN, nodes Nodes) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !allowed(w, r, token) {
			return
		}
		if rest, ok := strings.CutPrefix(r.URL.Path, "/v1alpha1/nodes"); ok && (rest == "" || rest[0] == '/') {
			serveNodes(w, r, nodes, rest)
			return
		}
		if r.Method != http.MethodGet {
			w.Header().Set("Allow", http.MethodGet)
			refuse(w, http.StatusMethodNotAllowed, "only GET is served")
			return
		}
		kind, ok := strings.CutPrefix(r.URL.Path, "/v1alpha1/")
		if !ok {
			refuse(w, http.StatusNotFound, "the path must be /v1alpha1/ and one of "+strings.Join(Kinds, ", "))
			return
		}
		if err := CheckKind(kind); err != nil {
			refuse(w, http.StatusNotFound, err.Error())
			return
		}
		var answer any
		var err error
		if of, ok := ofArrays[kind]; ok {
			var all []*san.Array
			if network != nil {
				all = network.Arrays()
			}
			if all, err = those("array", all, (*san.Array).Name, r.URL.Query().Get("array")); err == nil {
				answer = of(all)
			}
		} else {
			var from []Source
			if from, err = those("vCenter", sources, func(s Source) string { return s.Name }, r.URL.Query().Get("vcenter")); err == nil {
				answer = look(kind, from)
			}
		}
		if err != nil {
			refuse(w, http.StatusNotFound, err.Error())
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	})
}

// allowed says whether a request brings the token, and refuses one that does
// not.
func allowed(w http.ResponseWriter, r *http.Request, token string) bool {
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	// Digests: their length says nothing about the token's.
	got, want := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(token))
	if !ok || subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
		w.Header().Set("WWW-Authenticate", "Bearer")
		refuse(w, http.StatusUnauthorized, "the token is missing or wrong")
		return false
	}
	return true
}

// those finds one by name, or returns all. Errors: there are none, or not this
// one.
func those[T any](what string, all []T, nameOf func(T) string, name string) ([]T, error) {
	if len(all) == 0 {
		return nil, fmt.Errorf("no %s is served", what)
	}
	if name == "" {
		return all, nil
	}
	var names []string
	for _, x := range all {
		if nameOf(x) == name {
			return []T{x}, nil
		}
		names = append(names, nameOf(x))
	}
	return nil, fmt.Errorf("no %s %q; there are %s", what, name, strings.Join(names, ", "))
}

func refuse(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": text})
}

func look(kind string, sources []Source) any {
	switch kind {
	case "volumes":
		return list("VolumeList", sources, volumes)
	case "attachments":
		return list("AttachmentList", sources, attachments)
	case "tasks":
		return list("TaskList", sources, tasks)
	case "sessions":
		return list("SessionList", sources, sessions)
	}
	return list("DatastoreList", sources, datastores)
}

func list[T any](kind string, sources []Source, of func(Source) []T) List[T] {
	l := List[T]{APIVersion, kind, []T{}} // [] and not null
	for _, s := range sources {
		l.Items = append(l.Items, of(s)...)
	}
	return l
}

func volumes(s Source) (out []Volume) {
	nodes := map[string][]string{}
	for _, a := range s.VCenter.Attachments() {
		nodes[a.Volume] = append(nodes[a.Volume], a.VMName)
	}
	stores := map[string]string{}
	for _, d := range s.VCenter.DatastoreList() {
		stores[d.Ref] = d.Name
	}
	for _, v := range s.VCenter.Volumes() {
		x := Volume{VCenter: s.Name, ID: v.ID, Name: v.Name, Type: "BLOCK", CapacityMB: v.CapacityMB, Datastore: stores[v.Datastore], Policy: v.PolicyID,
			Snapshots: len(v.Snapshots), Nodes: nodes[v.ID], Created: v.Created.UTC()}
		if v.Share != nil {
			x.Type = "FILE"
		}
		for _, c := range append([]string{v.Metadata.Cluster.ID}, clusterIDs(v.Metadata.Clusters)...) {
			if c != "" && !slices.Contains(x.Clusters, c) {
				x.Clusters = append(x.Clusters, c)
			}
		}
		out = append(out, x)
	}
	return out
}

func attachments(s Source) (out []Attachment) {
	names := map[string]string{}
	for _, v := range s.VCenter.Volumes() {
		names[v.ID] = v.Name
	}
	for _, a := range s.VCenter.Attachments() {
		out = append(out, Attachment{VCenter: s.Name, Volume: a.Volume, Name: names[a.Volume], Node: a.VMName, VM: a.VM,
			DiskUUID: strings.ReplaceAll(a.DiskUUID, "-", ""), Controller: a.Controller, Bus: a.Bus, Unit: a.Unit})
	}
	return out
}

func tasks(s Source) (out []Task) {
	for _, t := range s.VCenter.TaskList() {
		out = append(out, Task{VCenter: s.Name, ID: t.ID, Op: t.Op, Volume: t.Volume, Snapshot: t.Snapshot, Node: t.VMName, Entity: t.Entity, State: t.State,
			Progress: t.Progress, OpID: t.OpID, User: t.User, Error: t.Error, Queued: t.Queued, Completed: t.Completed})
	}
	return out
}

func sessions(s Source) (out []Session) {
	for _, i := range s.VCenter.SessionList() {
		out = append(out, Session{VCenter: s.Name, Key: i.Key, Kind: i.Kind, User: i.User, Component: i.Component, Agent: i.Agent, Addr: i.Addr,
			LoggedIn: i.LoggedIn.UTC(), LastActive: i.LastActive.UTC(), Calls: i.Calls, Running: i.Running})
	}
	return out
}

func datastores(s Source) (out []Datastore) {
	count := map[string]int{}
	for _, v := range s.VCenter.Volumes() {
		count[v.Datastore]++
	}
	for _, d := range s.VCenter.DatastoreList() {
		hosts := d.Hosts
		if hosts == nil {
			hosts = []string{}
		}
		out = append(out, Datastore{VCenter: s.Name, Datacenter: d.Datacenter, Name: d.Name, Ref: d.Ref, Type: d.Type, URL: d.URL,
			CapacityBytes: d.CapacityBytes, FreeBytes: d.FreeBytes, Accessible: d.Accessible, Maintenance: d.Maintenance, Hosts: hosts, Volumes: count[d.Ref]})
	}
	return out
}

func clusterIDs(cs []core.Cluster) (ids []string) {
	for _, c := range cs {
		ids = append(ids, c.ID)
	}
	return ids
}
