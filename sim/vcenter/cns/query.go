package cns

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Limits of a query (CNS API reference, CnsCursor and CnsQueryFilter).
const (
	DefaultLimit = 100
	MaxLimit     = 1000
	MaxIDs       = 1000
)

// Status of a volume, spelled as CNS does.
const (
	Green = "green"
	Red   = "red"
)

// Compliance of a volume with its storage policy (VsanComplianceStatus of the
// vSAN Management API).
const (
	Compliant     = "compliant"
	NonCompliant  = "nonCompliant"
	NotApplicable = "notApplicable" // it has no policy
	Unknown       = "unknown"       // there is no such policy any more
)

// Home is where a volume lies, and the storage policy that is to be met there.
type Home struct{ Policy, Datastore string }

// Homes are those of all volumes.
func (c *Core) Homes() map[Home]struct{} {
	out := map[Home]struct{}{}
	for _, v := range c.volumes {
		out[v.Home()] = struct{}{}
	}
	return out
}

// Home of a volume.
func (v Volume) Home() Home { return Home{v.PolicyID, v.Datastore} }

// Filter selects volumes. Empty fields select all; each field that is set
// must match, and any of its values does.
type Filter struct {
	IDs        []string
	Names      []string
	Clusters   []string
	PolicyID   string
	Datastores []string
	Labels     []Label // any label of any entity
	Compliance string
	// Compliances has the compliance of each home that volumes have; it is
	// looked at where Compliance is set.
	Compliances   map[Home]string
	Accessibility string
	Health        string
	CBT           string // ENABLED or DISABLED

	// Of entities. An entity must match name and namespace.
	Namespaces, Pods, PVCs, PVs []string
}

// Cursor is a part of a result.
type Cursor struct {
	Offset int64
	Limit  int64 // 0: no limit
}

// Page is a part of the volumes that match.
type Page struct {
	Volumes []Volume
	Next    int64 // offset of what follows; Total when nothing does
	Total   int64
}

// Health of a volume is that of its datastore: green or red.
// Unverified: the values of a volume whose datastore is not accessible.
func (c *Core) Health(v Volume) string {
	if s, ok := c.datastores[v.Datastore]; ok && !s.Inaccessible && !v.Lost {
		return Green
	}
	return Red
}

// Access of a volume is that of its datastore. "accessible" as in the log of
// govmomi#2160; unverified: the other value.
func (c *Core) Access(v Volume) string {
	if s, ok := c.datastores[v.Datastore]; ok && !s.Inaccessible {
		return "accessible"
	}
	return "notAccessible"
}

// Query returns the volumes that match, oldest first. It walks the smallest
// index that the filter names: a query by id costs the same at any number of
// volumes. Errors: InvalidArgument (too many ids, cursor).
func (c *Core) Query(f Filter, cur Cursor) (Page, error) {
	if len(f.IDs) > MaxIDs {
		return Page{}, &Error{Kind: InvalidArgument, Field: "filter.volumeIds", Value: fmt.Sprint(len(f.IDs)), Reason: fmt.Sprintf("allowed are %d", MaxIDs)}
	}
	if cur.Offset < 0 || cur.Limit < 0 {
		return Page{}, &Error{Kind: InvalidArgument, Field: "filter.cursor", Value: fmt.Sprintf("offset %d, limit %d", cur.Offset, cur.Limit), Reason: "negative"}
	}
	if err := checkCBT(f.CBT); err != nil {
		return Page{}, err
	}
	// "This must be one of the compliance status exposed by SPBM", and so for
	// the health (CNS API reference, CnsQueryFilter).
	if err := checkStatus("filter.complianceStatus", f.Compliance, Compliant, NonCompliant, NotApplicable, Unknown, "outOfDate"); err != nil {
		return Page{}, err
	}
	if err := checkStatus("filter.healthStatus", f.Health, Green, "yellow", Red, Unknown); err != nil {
		return Page{}, err
	}
	var p Page
	for _, v := range c.candidates(f) {
		if v == nil || !c.matches(v, f) {
			continue
		}
		if p.Total >= cur.Offset && (cur.Limit == 0 || int64(len(p.Volumes)) < cur.Limit) {
			p.Volumes = append(p.Volumes, v.clone())
		}
		p.Total++
	}
	p.Next = min(cur.Offset+int64(len(p.Volumes)), p.Total)
	return p, nil
}

// checkStatus refuses a status that there isn't. Errors: InvalidArgument.
func checkStatus(field, value string, allowed ...string) error {
	if value == "" || slices.Contains(allowed, value) {
		return nil
	}
	return &Error{Kind: InvalidArgument, Field: field, Value: value, Reason: "allowed are " + strings.Join(allowed, ", ")}
}

// candidates are volumes, oldest first, among which all that match are.
func (c *Core) candidates(f Filter) []*volume {
	var best []*volume
	size := -1
	consider := func(n int, list func() []*volume) {
		if size < 0 || n < size {
			size, best = n, list()
		}
	}
	if len(f.IDs) > 0 {
		var vs []*volume
		for _, id := range f.IDs {
			if v, ok := c.volumes[id]; ok {
				vs = append(vs, v)
			}
		}
		return sorted(vs)
	}
	for _, x := range []struct {
		index map[string]set
		keys  []string
	}{{c.byName, f.Names}, {c.byCluster, f.Clusters}, {c.byDatastore, f.Datastores}} {
		if len(x.keys) == 0 {
			continue
		}
		n := 0
		for _, k := range x.keys {
			n += len(x.index[k])
		}
		if n >= len(c.volumes) {
			continue // all of them: the order is at hand
		}
		consider(n, func() []*volume {
			var vs []*volume
			for _, k := range x.keys {
				for v := range x.index[k] {
					vs = append(vs, v)
				}
			}
			return sorted(vs)
		})
	}
	if size < 0 {
		return c.order
	}
	return best
}

func sorted(vs []*volume) []*volume {
	slices.SortFunc(vs, func(a, b *volume) int { return cmp.Compare(a.seq, b.seq) })
	return slices.Compact(vs)
}

func (c *Core) matches(v *volume, f Filter) bool {
	return oneOf(f.Names, v.Name) && oneOf(f.Datastores, v.Datastore) &&
		(f.PolicyID == "" || f.PolicyID == v.PolicyID) &&
		(f.Compliance == "" || f.Compliance == f.Compliances[v.Home()]) &&
		(f.CBT == "" || f.CBT == v.CBT()) &&
		(f.Health == "" || f.Health == c.Health(v.Volume)) &&
		(f.Accessibility == "" || f.Accessibility == c.Access(v.Volume)) &&
		(len(f.Clusters) == 0 || slices.ContainsFunc(v.Metadata.clusterIDs(), func(id string) bool { return slices.Contains(f.Clusters, id) })) &&
		(len(f.Labels) == 0 || slices.ContainsFunc(v.Metadata.Entities, func(e Entity) bool {
			return slices.ContainsFunc(e.Labels, func(l Label) bool { return slices.Contains(f.Labels, l) })
		})) && f.matchesEntities(v.Metadata.Entities)
}

// matchesEntities: names of one kind are alternatives, so are namespaces; with
// both, pod or claim must be of one of the namespaces (govmomi's
// CnsKubernetesQueryFilter).
func (f Filter) matchesEntities(es []Entity) bool {
	if len(f.Namespaces) == 0 && len(f.Pods) == 0 && len(f.PVCs) == 0 && len(f.PVs) == 0 {
		return true
	}
	has := func(kind string, names, namespaces []string) bool {
		return slices.ContainsFunc(es, func(e Entity) bool {
			return (kind == "" || e.Type == kind) && oneOf(names, e.Name) && oneOf(namespaces, e.Namespace)
		})
	}
	if len(f.Pods)+len(f.PVCs)+len(f.PVs) == 0 {
		return has("", nil, f.Namespaces)
	}
	return (len(f.Pods) == 0 || has("POD", f.Pods, f.Namespaces)) &&
		(len(f.PVCs) == 0 || has("PERSISTENT_VOLUME_CLAIM", f.PVCs, f.Namespaces)) &&
		(len(f.PVs) == 0 || has("PERSISTENT_VOLUME", f.PVs, nil))
}

func oneOf(list []string, s string) bool { return len(list) == 0 || slices.Contains(list, s) }
