package wsapi

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/csilab/csilab/sim/array"
)

var volumeRoutes = []route{
	get("volumes", (*Server).listVolumes),
	get("volumes/{name}", (*Server).getVolume),
	change(http.MethodPost, "volumes", (*Server).createVolume),
	change(http.MethodPut, "volumes/{name}", (*Server).changeVolume),
	change(http.MethodPost, "volumes/{name}", (*Server).copyVolume),
	change(http.MethodDelete, "volumes/{name}", (*Server).deleteVolume),
	get("volumes/{name}/objectKeyValues", (*Server).listValues),
	get("volumes/{name}/objectKeyValues/{key}", (*Server).getValue),
	change(http.MethodPost, "volumes/{name}/objectKeyValues", (*Server).createValue),
	change(http.MethodPut, "volumes/{name}/objectKeyValues/{key}", (*Server).putValue),
	change(http.MethodDelete, "volumes/{name}/objectKeyValues/{key}", (*Server).deleteValue),
}

// space is what a volume takes of something, in MiB.
type space struct {
	Reserved    int64 `json:"reservedMiB"`
	RawReserved int64 `json:"rawReservedMiB"`
	Used        int64 `json:"usedMiB"`
	Free        int64 `json:"freeMiB"`
}

func taken(reserved, used int64) space {
	return space{reserved, reserved, used, max(reserved-used, 0)}
}

// volume is how the API shows one.
type volume struct {
	ID           int64              `json:"id"`
	Name         string             `json:"name"`
	Provisioning array.Provisioning `json:"provisioningType"`
	CopyType     array.CopyType     `json:"copyType"`
	CopyOf       string             `json:"copyOf,omitempty"`
	BaseID       int64              `json:"baseId"`
	ReadOnly     bool               `json:"readOnly"`
	State        array.State        `json:"state"`
	// States beyond state: none.
	FailedStates   []int               `json:"failedStates"`
	DegradedStates []int               `json:"degradedStates"`
	UserSpace      space               `json:"userSpace"`
	SnapshotSpace  space               `json:"snapshotSpace"`
	AdminSpace     space               `json:"adminSpace"`
	SizeMiB        int64               `json:"sizeMiB"`
	TotalUsedMiB   int64               `json:"totalUsedMiB"`
	TotalReserved  int64               `json:"totalReservedMiB"`
	HostWriteMiB   int64               `json:"hostWriteMiB"`
	WWN            string              `json:"wwn"`
	NGUID          string              `json:"nguid"`
	Created        string              `json:"creationTime8601"`
	Expires        string              `json:"expirationTime8601,omitempty"`
	Retained       string              `json:"retentionTime8601,omitempty"`
	Warning        int                 `json:"usrSpcAllocWarningPct"`
	Limit          int                 `json:"usrSpcAllocLimitPct"`
	Policies       policies            `json:"policies"`
	UserCPG        string              `json:"userCPG,omitempty"`
	SnapCPG        string              `json:"snapCPG,omitempty"`
	UUID           string              `json:"uuid"`
	Domain         string              `json:"domain,omitempty"`
	Comment        string              `json:"comment,omitempty"`
	Dedup          int                 `json:"deduplicationState"` // 1 yes, 2 no
	Compression    int                 `json:"compressionState"`
	Links          []map[string]string `json:"links"`
}

type policies struct {
	StaleSS    bool `json:"staleSS"`
	OneHost    bool `json:"oneHost"`
	ZeroDetect bool `json:"zeroDetect"`
	System     bool `json:"system"`
	Caching    bool `json:"caching"`
}

func yesNo(b bool) int {
	if b {
		return 1
	}
	return 2
}

// volumeOut shows a volume. baseId is that of the volume that a chain of
// copies starts with.
func (s *Server) volumeOut(c *call, v array.Volume) volume {
	base := v
	for base.CopyType == array.Virtual && base.CopyOf != "" {
		b, err := s.a.Volume(base.CopyOf)
		if err != nil {
			break
		}
		base = b
	}
	user := taken(v.WrittenMiB, v.WrittenMiB)
	if v.Provisioning == array.Full {
		user = taken(v.SizeMiB, v.SizeMiB)
	}
	snap := taken(v.SnapshotMiB, v.SnapshotMiB)
	return volume{
		ID: v.ID, Name: v.Name, Provisioning: v.Provisioning, CopyType: v.CopyType, CopyOf: v.CopyOf, BaseID: base.ID,
		ReadOnly: v.ReadOnly, State: v.State, FailedStates: []int{}, DegradedStates: []int{},
		UserSpace: user, SnapshotSpace: snap, SizeMiB: v.SizeMiB, TotalUsedMiB: user.Used + snap.Used,
		TotalReserved: user.Reserved + snap.Reserved, HostWriteMiB: v.WrittenMiB, WWN: v.WWN, NGUID: v.WWN,
		Created: stamp(v.Created), Expires: stamp(v.Expires), Retained: stamp(v.Retained),
		Warning: v.UserWarningPct, Limit: v.UserLimitPct, Policies: policies(v.Policies), UserCPG: v.UserCPG, SnapCPG: v.SnapCPG,
		UUID: v.UUID, Domain: v.Domain, Comment: v.Comment,
		Dedup: yesNo(v.Provisioning == array.Dedup || v.Provisioning == array.Reduce), Compression: yesNo(v.Compression || v.Provisioning == array.Reduce),
		Links: c.link("volumes", v.Name),
	}
}

func (s *Server) listVolumes(c *call) (reply, error) {
	q, err := c.ask("name", "copyOf", "wwn", "userCPG", "snapCPG")
	if err != nil {
		return reply{}, err
	}
	var all []array.Volume
	if of, ok := q.only("copyOf"); ok {
		for _, n := range s.a.CopiesOf(of) {
			if v, err := s.a.Volume(n); err == nil {
				all = append(all, v)
			}
		}
	} else if w, ok := q.only("wwn"); ok {
		if v, ok := s.a.VolumeByWWN(strings.ToUpper(w)); ok {
			all = append(all, v)
		}
	} else {
		all = s.a.Volumes()
	}
	var out []volume
	for _, v := range all {
		if q.holds(func(t term) bool {
			switch t.field {
			case "name":
				return v.Name == t.value
			case "copyOf":
				return v.CopyOf == t.value
			case "wwn":
				return strings.EqualFold(v.WWN, t.value)
			case "userCPG":
				return v.UserCPG == t.value
			}
			return v.SnapCPG == t.value
		}) {
			out = append(out, s.volumeOut(c, v))
		}
	}
	return reply{body: list(out)}, nil
}

func (s *Server) getVolume(c *call) (reply, error) {
	v, err := s.a.Volume(c.vars["name"])
	if err != nil {
		return reply{}, err
	}
	return reply{body: s.volumeOut(c, v)}, nil
}

// kind is what a body asks for with tpvv, tdvv and reduce: one of them at most.
type kind struct{ tpvv, tdvv, reduce *bool }

func (s *Server) kind(k kind) (array.Provisioning, error) {
	if k.reduce != nil && s.family == array.ThreePAR {
		return 0, refuse(array.InvalidInput, "reduce", "invalid input: unknown member")
	}
	var p array.Provisioning
	for _, x := range []struct {
		name string
		is   *bool
		p    array.Provisioning
	}{{"tpvv", k.tpvv, array.Thin}, {"tdvv", k.tdvv, array.Dedup}, {"reduce", k.reduce, array.Reduce}} {
		if given(x.is) {
			if p != 0 {
				return 0, refuse(array.ParamConflict, x.name, "invalid input: parameters cannot be present at the same time")
			}
			p = x.p
		}
	}
	return p, nil
}

func (s *Server) createVolume(c *call) (reply, error) {
	var in struct {
		Name            *string   `json:"name"`
		CPG             *string   `json:"cpg"`
		SizeMiB         *int64    `json:"sizeMiB"`
		ID              *int64    `json:"id"`
		Comment         *string   `json:"comment"`
		Policies        *policies `json:"policies"`
		SnapCPG         *string   `json:"snapCPG"`
		SnapWarning     *int64    `json:"ssSpcAllocWarningPct"` // told to the array, shown nowhere
		SnapLimit       *int64    `json:"ssSpcAllocLimitPct"`
		TPVV            *bool     `json:"tpvv"`
		TDVV            *bool     `json:"tdvv"`
		Reduce          *bool     `json:"reduce"`
		Compression     *bool     `json:"compression"`
		Warning         *int64    `json:"usrSpcAllocWarningPct"`
		Limit           *int64    `json:"usrSpcAllocLimitPct"`
		ExpirationHours *int64    `json:"expirationHours"`
		RetentionHours  *int64    `json:"retentionHours"`
	}
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	for _, x := range []struct {
		ok   bool
		name string
	}{{in.Name != nil, "name"}, {in.CPG != nil, "cpg"}, {in.SizeMiB != nil, "sizeMiB"}} {
		if err := required(x.ok, x.name); err != nil {
			return reply{}, err
		}
	}
	p, err := s.kind(kind{in.TPVV, in.TDVV, in.Reduce})
	if err != nil {
		return reply{}, err
	}
	for _, x := range []struct {
		n    *int64
		name string
	}{{in.SnapWarning, "ssSpcAllocWarningPct"}, {in.SnapLimit, "ssSpcAllocLimitPct"}, {in.Warning, "usrSpcAllocWarningPct"}, {in.Limit, "usrSpcAllocLimitPct"}} {
		if n := given(x.n); n < 0 || n > 100 {
			return reply{}, refuse(array.ExceedsRange, x.name, "allowed are 0 to 100")
		}
	}
	spec := array.VolumeSpec{Name: *in.Name, ID: in.ID, CPG: *in.CPG, SnapCPG: given(in.SnapCPG), SizeMiB: *in.SizeMiB, Provisioning: p,
		Compression: given(in.Compression), Comment: given(in.Comment), Policies: array.Policies(given(in.Policies)),
		ExpirationHours: given(in.ExpirationHours), RetentionHours: given(in.RetentionHours),
		UserWarningPct: int(given(in.Warning)), UserLimitPct: int(given(in.Limit))}
	plan, err := s.a.PlanCreateVolume(spec)
	if err == nil {
		err = s.apply(plan.Ops)
	}
	if err == nil {
		_, err = s.a.CreateVolume(c.now, spec)
	}
	if err != nil {
		return reply{}, err
	}
	return created("volumes", spec.Name), nil
}

// The actions of a PUT of a volume. 5 and 6 and what they take are of the
// guide; 5 stops a promotion.
const (
	stopCopy    = 1
	resyncCopy  = 2
	growVolume  = 3
	promoteCopy = 4
	stopPromote = 5
	tuneVolume  = 6
)

// tasked answers with the number of a task.
func tasked(t array.Task, err error) (reply, error) {
	if err != nil {
		return reply{}, err
	}
	return reply{body: map[string]int64{"taskid": t.ID}}, nil
}

func (s *Server) changeVolume(c *call) (reply, error) {
	var in struct {
		Action      *int64  `json:"action"`
		SizeMiB     *int64  `json:"sizeMiB"`
		Online      *bool   `json:"online"`
		Priority    *int64  `json:"priority"`
		RemoteCopy  *bool   `json:"allowRemoteCopyParent"`
		Tune        *int64  `json:"tuneOperation"`
		Convert     *int64  `json:"conversionOperation"`
		UserCPG     *string `json:"userCPG"`
		SnapCPG     *string `json:"snapCPG"`
		KeepVV      *string `json:"keepVV"`
		Compression *bool   `json:"compression"`
		NewName     *string `json:"newName"`
		Comment     *string `json:"comment"`
		Policies    *struct {
			StaleSS    *bool `json:"staleSS"`
			OneHost    *bool `json:"oneHost"`
			ZeroDetect *bool `json:"zeroDetect"`
			System     *bool `json:"system"`
			Caching    *bool `json:"caching"`
		} `json:"policies"`
		ExpirationHours  *int64 `json:"expirationHours"`
		RetentionHours   *int64 `json:"retentionHours"`
		RemoveExpiration *bool  `json:"rmExpTime"`
	}
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	name := c.vars["name"]
	modifies := in.NewName != nil || in.Comment != nil || in.Policies != nil || in.ExpirationHours != nil || in.RetentionHours != nil || in.RemoveExpiration != nil
	if in.Action == nil {
		for _, x := range []struct {
			given bool
			name  string
		}{{in.SizeMiB != nil, "sizeMiB"}, {in.Online != nil, "online"}, {in.Priority != nil, "priority"}, {in.RemoteCopy != nil, "allowRemoteCopyParent"},
			{in.Tune != nil, "tuneOperation"}, {in.Convert != nil, "conversionOperation"}, {in.KeepVV != nil, "keepVV"}, {in.Compression != nil, "compression"}} {
			if x.given {
				return reply{}, refuse(array.InvalidInput, x.name, "invalid input: "+x.name+" goes with an action")
			}
		}
		ch := array.VolumeChange{NewName: in.NewName, Comment: in.Comment, UserCPG: in.UserCPG, SnapCPG: in.SnapCPG,
			ExpirationHours: given(in.ExpirationHours), RetentionHours: given(in.RetentionHours), RemoveExpiration: given(in.RemoveExpiration)}
		if n := in.Policies; n != nil { // those that are not given stay
			v, err := s.a.Volume(name)
			if err != nil {
				return reply{}, err
			}
			p := v.Policies
			for _, x := range []struct {
				from *bool
				to   *bool
			}{{n.StaleSS, &p.StaleSS}, {n.OneHost, &p.OneHost}, {n.ZeroDetect, &p.ZeroDetect}, {n.System, &p.System}, {n.Caching, &p.Caching}} {
				if x.from != nil {
					*x.to = *x.from
				}
			}
			ch.Policies = &p
		}
		_, err := s.a.ModifyVolume(c.now, name, ch)
		return reply{}, err
	}
	if modifies {
		return reply{}, refuse(array.ParamConflict, "action", "invalid input: an action goes with no other change")
	}
	switch *in.Action {
	case stopCopy:
		ops, err := s.a.StopCopy(c.now, name)
		if err == nil {
			s.owe(ops)
		}
		return reply{}, err
	case resyncCopy:
		plan, err := s.a.PlanResync(name)
		if err == nil {
			err = s.apply(plan.Ops)
		}
		if err != nil {
			return reply{}, err
		}
		return tasked(s.a.Resync(c.now, name))
	case growVolume:
		if err := required(in.SizeMiB != nil, "sizeMiB"); err != nil {
			return reply{}, err
		}
		plan, err := s.a.PlanGrow(name, *in.SizeMiB)
		if err == nil {
			err = s.apply(plan.Ops)
		}
		if err == nil {
			_, err = s.a.Grow(c.now, name, *in.SizeMiB)
		}
		return reply{}, err
	case promoteCopy:
		spec := array.PromoteSpec{Copy: name, Online: given(in.Online), RemoteCopy: given(in.RemoteCopy), Priority: int(given(in.Priority))}
		plan, err := s.a.PlanPromote(spec)
		if err == nil {
			err = s.apply(plan.Ops)
		}
		if err != nil {
			return reply{}, err
		}
		return tasked(s.a.Promote(c.now, spec))
	case stopPromote:
		return reply{}, s.a.StopPromote(c.now, name)
	case tuneVolume:
		spec := array.TuneSpec{Volume: name, UserCPG: given(in.UserCPG), SnapCPG: given(in.SnapCPG)}
		switch given(in.Tune) {
		case 1, 2: // the user's CPG, that of snapshots
		case 0:
			return reply{}, required(false, "tuneOperation")
		default:
			return reply{}, refuse(array.BadEnum, "tuneOperation", "invalid input: allowed are 1 and 2")
		}
		if in.KeepVV != nil || given(in.Compression) { // nothing keeps the volume as it was, or packs it
			return reply{}, refuse(array.UnsupportedOp, "keepVV", "unsupported operation")
		}
		switch given(in.Convert) {
		case 0:
		case 1:
			spec.Convert = array.Thin
		case 2:
			spec.Convert = array.Full
		case 3:
			spec.Convert = array.Dedup
		case 4: // deduplicated and compressed, which is reduced on a Primera
			if spec.Convert = array.Reduce; s.family == array.ThreePAR {
				return reply{}, refuse(array.UnsupportedOp, "conversionOperation", "unsupported operation")
			}
		default:
			return reply{}, refuse(array.BadEnum, "conversionOperation", "invalid input: allowed are 1 to 4")
		}
		return tasked(s.a.Tune(c.now, spec))
	}
	return reply{}, refuse(array.BadEnum, "action", "invalid input: allowed are 1 to 6")
}

func (s *Server) copyVolume(c *call) (reply, error) {
	var in struct {
		Action     *string `json:"action"`
		Parameters *struct {
			Name            *string `json:"name"`
			ID              *int64  `json:"id"`
			Comment         *string `json:"comment"`
			ReadOnly        *bool   `json:"readOnly"`
			ExpirationHours *int64  `json:"expirationHours"`
			RetentionHours  *int64  `json:"retentionHours"`

			DestVolume  *string `json:"destVolume"`
			DestCPG     *string `json:"destCPG"`
			SnapCPG     *string `json:"snapCPG"`
			Online      *bool   `json:"online"`
			TPVV        *bool   `json:"tpvv"`
			TDVV        *bool   `json:"tdvv"`
			Reduce      *bool   `json:"reduce"`
			Compression *bool   `json:"compression"`
			Save        *bool   `json:"saveSnapshot"`
			Priority    *int64  `json:"priority"`
			SkipZero    *bool   `json:"skipZero"` // how the array copies; the content is the same
		} `json:"parameters"`
	}
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	if err := required(in.Action != nil, "action"); err != nil {
		return reply{}, err
	}
	p := in.Parameters
	if err := required(p != nil, "parameters"); err != nil {
		return reply{}, err
	}
	of := c.vars["name"]
	switch *in.Action {
	case "createSnapshot":
		if err := required(p.Name != nil, "name"); err != nil {
			return reply{}, err
		}
		if p.DestVolume != nil || p.DestCPG != nil || p.Online != nil || p.TPVV != nil || p.TDVV != nil || p.Reduce != nil || p.Save != nil || p.Priority != nil || p.SnapCPG != nil || p.Compression != nil || p.SkipZero != nil {
			return reply{}, refuse(array.InvalidInput, "parameters", "invalid input: parameters of a physical copy")
		}
		spec := array.CopySpec{Of: of, Name: *p.Name, ID: p.ID, ReadOnly: given(p.ReadOnly), Comment: given(p.Comment),
			ExpirationHours: given(p.ExpirationHours), RetentionHours: given(p.RetentionHours)}
		plan, err := s.a.PlanCreateCopy(spec)
		if err == nil {
			err = s.apply(plan.Ops)
		}
		if err == nil {
			_, err = s.a.CreateCopy(c.now, spec)
		}
		if err != nil {
			return reply{}, err
		}
		return created("volumes", spec.Name), nil
	case "createPhysicalCopy":
		if err := required(p.DestVolume != nil, "destVolume"); err != nil {
			return reply{}, err
		}
		if p.Name != nil || p.ID != nil || p.Comment != nil || p.ReadOnly != nil || p.ExpirationHours != nil || p.RetentionHours != nil {
			return reply{}, refuse(array.InvalidInput, "parameters", "invalid input: parameters of a snapshot")
		}
		kind, err := s.kind(kind{p.TPVV, p.TDVV, p.Reduce})
		if err != nil {
			return reply{}, err
		}
		spec := array.CloneSpec{Of: of, To: *p.DestVolume, Online: given(p.Online), CPG: given(p.DestCPG), SnapCPG: given(p.SnapCPG),
			Provisioning: kind, Compression: given(p.Compression), Keep: given(p.Save), Priority: int(given(p.Priority))}
		if spec.Online {
			if err := required(p.DestCPG != nil, "destCPG"); err != nil {
				return reply{}, err
			}
		}
		plan, err := s.a.PlanClone(spec)
		if err == nil {
			err = s.apply(plan.Ops)
		}
		if err != nil {
			return reply{}, err
		}
		r, err := tasked(s.a.Clone(c.now, spec))
		r.status, r.location = http.StatusCreated, where("volumes", spec.To)
		return r, err
	}
	return reply{}, refuse(array.BadEnum, "action", "invalid input: allowed are createSnapshot and createPhysicalCopy")
}

// deleteVolume removes one, with ?cascade=true its snapshots before it.
func (s *Server) deleteVolume(c *call) (reply, error) {
	name := c.vars["name"]
	all := []string{name}
	switch v := c.query.Get("cascade"); v {
	case "", "false":
	case "true":
		all = s.withCopies(name, nil)
		for _, n := range all { // what stands against one keeps all
			if err := s.removableWithCopies(c, n); err != nil {
				return reply{}, err
			}
		}
	default:
		return reply{}, refuse(array.InvalidInput, "cascade", "invalid input: allowed are true and false")
	}
	for _, n := range all {
		plan, err := s.a.PlanDeleteVolume(c.now, n)
		if err == nil {
			err = s.apply(plan.Ops)
		}
		if err == nil {
			_, err = s.a.DeleteVolume(c.now, n)
		}
		if err != nil {
			return reply{}, err
		}
	}
	return reply{}, nil
}

// removableWithCopies says whether a volume could be removed once its virtual
// copies are gone.
func (s *Server) removableWithCopies(c *call, name string) error {
	_, err := s.a.PlanDeleteVolume(c.now, name)
	var e *array.Error
	if !errors.As(err, &e) || e.Kind != array.HasChild && e.Kind != array.HasReadOnlyChild {
		return err
	}
	for _, n := range s.a.CopiesOf(name) {
		if v, err := s.a.Volume(n); err == nil && v.CopyType != array.Virtual {
			return e
		}
	}
	for _, set := range s.a.VolumeSets() { // the core looks at copies first
		if slices.Contains(set.Members, name) {
			return &array.Error{Kind: array.InUse, Field: "name", Value: name, Reason: "the volume is in a set", Holder: set.Name}
		}
	}
	return nil
}

// withCopies appends a volume and its virtual copies, copies before what they are
// copies of.
func (s *Server) withCopies(name string, to []string) []string {
	for _, n := range s.a.CopiesOf(name) {
		if v, err := s.a.Volume(n); err == nil && v.CopyType == array.Virtual {
			to = s.withCopies(n, to)
		}
	}
	return append(to, name)
}
