package wsapi

import (
	"net/http"
	"slices"

	"github.com/csilab/csilab/sim/array"
)

// setRoutes are those of sets of hosts and of volumes.
var setRoutes = []route{
	get("hostsets", hostSets.list),
	get("hostsets/{name}", hostSets.get),
	change(http.MethodPost, "hostsets", hostSets.create),
	change(http.MethodPut, "hostsets/{name}", hostSets.change),
	change(http.MethodDelete, "hostsets/{name}", hostSets.delete),
	get("volumesets", volumeSets.list),
	get("volumesets/{name}", volumeSets.get),
	change(http.MethodPost, "volumesets", volumeSets.create),
	change(http.MethodPut, "volumesets/{name}", volumeSets.change),
	change(http.MethodPost, "volumesets/{name}", (*Server).copyVolumeSet),
	change(http.MethodDelete, "volumesets/{name}", volumeSets.delete),
}

// sets is what the core does to one kind of sets.
type sets struct {
	path   string
	all    func(*array.Array) []array.Set
	one    func(*array.Array, string) (array.Set, error)
	make   func(*array.Array, *call, array.SetSpec) (array.Set, error)
	modify func(*array.Array, *call, string, array.SetChange) (array.Set, error)
	drop   func(*array.Array, *call, string) error
}

var hostSets = sets{"hostsets", (*array.Array).HostSets, (*array.Array).HostSet,
	func(a *array.Array, c *call, s array.SetSpec) (array.Set, error) { return a.CreateHostSet(c.now, s) },
	func(a *array.Array, c *call, n string, ch array.SetChange) (array.Set, error) {
		return a.ModifyHostSet(c.now, n, ch)
	},
	func(a *array.Array, c *call, n string) error { return a.DeleteHostSet(c.now, n) }}

var volumeSets = sets{"volumesets", (*array.Array).VolumeSets, (*array.Array).VolumeSet,
	func(a *array.Array, c *call, s array.SetSpec) (array.Set, error) { return a.CreateVolumeSet(c.now, s) },
	func(a *array.Array, c *call, n string, ch array.SetChange) (array.Set, error) {
		return a.ModifyVolumeSet(c.now, n, ch)
	},
	func(a *array.Array, c *call, n string) error { return a.DeleteVolumeSet(c.now, n) }}

func (k sets) out(s *Server, c *call, o array.Set) map[string]any {
	out := map[string]any{"id": o.ID, "uuid": o.UUID, "name": o.Name, "links": c.link(k.path, o.Name)}
	if o.Members != nil { // an empty set has no such member
		out["setmembers"] = o.Members
	}
	if o.Domain != "" {
		out["domain"] = o.Domain
	}
	if o.Comment != "" {
		out["comment"] = o.Comment
	}
	if k.path == volumeSets.path {
		r, err := s.a.Rule(o.Name)
		out["qosEnabled"] = err == nil && r.Enabled
		if o.Flash != 0 {
			out["flashCachePolicy"] = o.Flash
		}
	}
	return out
}

func (k sets) list(s *Server, c *call) (reply, error) {
	q, err := c.ask("name", "setmembers")
	if err != nil {
		return reply{}, err
	}
	var out []map[string]any
	for _, o := range k.all(s.a) {
		if q.holds(func(t term) bool {
			if t.field == "name" {
				return o.Name == t.value
			}
			return slices.Contains(o.Members, t.value)
		}) {
			out = append(out, k.out(s, c, o))
		}
	}
	return reply{body: list(out)}, nil
}

func (k sets) get(s *Server, c *call) (reply, error) {
	o, err := k.one(s.a, c.vars["name"])
	if err != nil {
		return reply{}, err
	}
	return reply{body: k.out(s, c, o)}, nil
}

// flashCache reads a policy of the flash cache, nil where none is given. Sets
// of hosts have none.
func (k sets) flashCache(p *int64) (*array.FlashPolicy, error) {
	if p == nil {
		return nil, nil
	}
	if k.path == hostSets.path {
		return nil, refuse(array.InvalidInput, "flashCachePolicy", "invalid input: unknown member")
	}
	return flashPolicy(*p)
}

func (k sets) create(s *Server, c *call) (reply, error) {
	var in struct {
		Name       *string  `json:"name"`
		Comment    *string  `json:"comment"`
		Domain     *string  `json:"domain"`
		Members    []string `json:"setmembers"`
		FlashCache *int64   `json:"flashCachePolicy"`
	}
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	if err := required(in.Name != nil, "name"); err != nil {
		return reply{}, err
	}
	flash, err := k.flashCache(in.FlashCache)
	if err != nil {
		return reply{}, err
	}
	o, err := k.make(s.a, c, array.SetSpec{Name: *in.Name, Domain: given(in.Domain), Comment: given(in.Comment), Members: in.Members, Flash: given(flash)})
	if err != nil {
		return reply{}, err
	}
	return created(k.path, o.Name), nil
}

func (k sets) change(s *Server, c *call) (reply, error) {
	var in struct {
		Action     *int64   `json:"action"`
		NewName    *string  `json:"newName"`
		Comment    *string  `json:"comment"`
		Members    []string `json:"setmembers"`
		FlashCache *int64   `json:"flashCachePolicy"`
	}
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	flash, err := k.flashCache(in.FlashCache)
	if err != nil {
		return reply{}, err
	}
	ch := array.SetChange{NewName: in.NewName, Comment: in.Comment, Flash: flash}
	if in.Action == nil && in.Members != nil {
		return reply{}, required(false, "action")
	}
	if in.Action != nil {
		if err := required(len(in.Members) > 0, "setmembers"); err != nil {
			return reply{}, err
		}
		switch *in.Action {
		case 1:
			ch.Add = in.Members
		case 2:
			ch.Remove = in.Members
		case 3, 4: // resync and stop the physical copies of a whole set
			return reply{}, refuse(array.UnsupportedOp, "action", "unsupported operation")
		default:
			return reply{}, refuse(array.BadEnum, "action", "invalid input: allowed are 1 to 4")
		}
	}
	_, err = k.modify(s.a, c, c.vars["name"], ch)
	return reply{}, err
}

func (k sets) delete(s *Server, c *call) (reply, error) {
	return reply{}, k.drop(s.a, c, c.vars["name"])
}

// copyVolumeSet makes snapshots of all volumes of a set, of one moment.
func (s *Server) copyVolumeSet(c *call) (reply, error) {
	var in struct {
		Action     *string `json:"action"`
		Parameters *struct {
			Name            *string `json:"name"`
			ID              *int64  `json:"id"`
			Comment         *string `json:"comment"`
			ReadOnly        *bool   `json:"readOnly"`
			ExpirationHours *int64  `json:"expirationHours"`
			RetentionHours  *int64  `json:"retentionHours"`
		} `json:"parameters"`
	}
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	p := in.Parameters
	for _, x := range []struct {
		ok   bool
		name string
	}{{in.Action != nil, "action"}, {p != nil, "parameters"}, {p != nil && p.Name != nil, "name"}} {
		if err := required(x.ok, x.name); err != nil {
			return reply{}, err
		}
	}
	if *in.Action != "createSnapshot" { // physical copies of a set are not built
		return reply{}, refuse(array.UnsupportedOp, "action", "unsupported operation")
	}
	spec := array.CopySpec{Of: c.vars["name"], Name: *p.Name, ID: p.ID, ReadOnly: given(p.ReadOnly), Comment: given(p.Comment),
		ExpirationHours: given(p.ExpirationHours), RetentionHours: given(p.RetentionHours)}
	plans, err := s.a.PlanCopySet(spec)
	if err == nil {
		var ops []array.ContentOp
		for _, plan := range plans {
			ops = append(ops, plan.Ops...)
		}
		err = s.apply(ops)
	}
	if err == nil {
		_, err = s.a.CopySet(c.now, spec)
	}
	if err != nil {
		return reply{}, err
	}
	return reply{status: http.StatusCreated}, nil
}
