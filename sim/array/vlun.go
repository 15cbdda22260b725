package array

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// VLUNType is to whom a volume is exported, numbered as the WSAPI does.
type VLUNType int

// The types of exports.
const (
	PortPresents VLUNType = 2 // to whoever sees the port
	HostSees     VLUNType = 3 // to a host, over all ports
	MatchedSet   VLUNType = 4 // to a host over one port
	ToHostSet    VLUNType = 5 // to all hosts of a set, over all ports
)

// setPrefix marks the name of a set where one of a host may stand.
const setPrefix = "set:"

// VLUN is an export: a template that makes a volume appear at a LUN.
type VLUN struct {
	Volume  string    `json:"volume"`
	WWN     string    `json:"-"`
	LUN     int       `json:"lun"`
	Host    string    `json:"host,omitempty"` // or set:NAME
	Port    *PortPos  `json:"port,omitempty"`
	Type    VLUNType  `json:"type"`
	Created time.Time `json:"created"`
	// Via is the export that it is part of, where that is of a set of volumes:
	// set:NAME. It goes with that.
	Via string `json:"-"`
}

type vlun struct {
	VLUN
	vol  *volume
	host *host
	set  *hostSet
	via  *setVLUN // the export of a set that it is part of
}

// vlunKey is what a volume has at most one export for.
type vlunKey struct {
	vol  *volume
	host *host
	set  *hostSet
	port PortPos // cardPort 0: over all
}

func (x *vlun) key() vlunKey {
	k := vlunKey{vol: x.vol, host: x.host, set: x.set}
	if x.Port != nil {
		k.port = *x.Port
	}
	return k
}

// target is to whom it goes, in words.
func (x *vlun) target() string {
	switch {
	case x.set != nil:
		return setPrefix + x.set.Name
	case x.host != nil:
		return x.host.Name
	}
	return x.Port.String()
}

func (x *vlun) volume() string { return x.vol.Name }

func (x *vlun) out() VLUN {
	o := x.VLUN
	o.Volume, o.WWN, o.Host = x.vol.Name, x.vol.WWN, ""
	if x.via != nil {
		o.Via = x.via.volume()
	}
	if x.host != nil || x.set != nil {
		o.Host = x.target()
	}
	if x.Port != nil {
		p := *x.Port
		o.Port = &p
	}
	return o
}

// VLUNSpec says what to export.
type VLUNSpec struct {
	Volume string // or set:NAME
	LUN    int
	Host   string // or set:NAME
	Port   *PortPos
	// Auto takes the lowest LUN from LUN on that is free, up to MaxAuto where
	// that is not 0; a volume that the host has already stays at its LUN.
	Auto    bool
	MaxAuto int
	// Override lets pass that another volume is presented at the LUN by a port:
	// the host does not see that any more.
	Override bool
}

func (a *Array) planVLUN(s VLUNSpec) (*vlun, error) {
	if s.Volume == "" {
		return nil, &Error{Kind: MissingRequired, Field: "volumeName", Reason: "a volume is required"}
	}
	if s.Host == "" && s.Port == nil {
		return nil, &Error{Kind: MissingExport, Field: "hostname", Reason: "hostname or portPos is required"}
	}
	if s.Override && s.Host == "" {
		return nil, &Error{Kind: ParamConflict, Field: "overrideLowerPriority", Value: "true", Reason: "only with hostname"}
	}
	for _, x := range []struct {
		field string
		lun   int
	}{{"lun", s.LUN}, {"maxAutoLun", s.MaxAuto}} {
		if x.lun < 0 {
			return nil, &Error{Kind: ExceedsRange, Field: x.field, Value: fmt.Sprint(x.lun), Reason: fmt.Sprintf("allowed are 0 to %d", MaxLUN)}
		}
		if x.lun > MaxLUN {
			return nil, &Error{Kind: TooLarge, Field: x.field, Value: fmt.Sprint(x.lun), Reason: fmt.Sprintf("allowed are 0 to %d", MaxLUN)}
		}
	}
	x, err := a.resolve(s)
	if err != nil {
		return nil, err
	}
	v := x.vol
	if x.set != nil && len(x.set.members) == 0 {
		// Unverified: that exports to an empty set are refused.
		return nil, &Error{Kind: EmptySet, Field: "hostname", Value: s.Host, Reason: "the set has no hosts"}
	}
	if x.set != nil && x.set.Domain != v.Domain {
		return nil, otherDomain(s.Host, x.set.Domain, v)
	}
	if x.host != nil && x.host.Domain != v.Domain {
		return nil, otherDomain(s.Host, x.host.Domain, v)
	}
	if t := v.busy; t != nil && t.to == v && (t.Type == CopyTask || t.Type == ResyncTask) {
		return nil, &Error{Kind: PhysicalCopyTarget, Field: "volumeName", Value: s.Volume, Reason: "a physical copy to the volume runs", Holder: fmt.Sprintf("task %d", t.ID)}
	}
	if err := v.whole(); err != nil {
		return nil, err
	}
	if old, ok := a.vluns.get(x.key()); ok {
		return nil, &Error{Kind: ExistentLUN, Field: "volumeName", Value: s.Volume, Reason: fmt.Sprintf("it is exported there at LUN %d", old.LUN), Holder: old.target()}
	}
	if v.Policies.OneHost {
		for _, y := range inOrder(a.exports[v]) {
			if y.host != x.host || y.set != x.set {
				// Unverified: the code.
				return nil, &Error{Kind: InUse, Field: "volumeName", Value: s.Volume, Reason: "its policy allows one host", Holder: y.target()}
			}
		}
	}
	return x, a.pickLUN(x, s)
}

// resolve finds what an export is about.
func (a *Array) resolve(s VLUNSpec) (x *vlun, err error) {
	x = &vlun{VLUN: VLUN{LUN: s.LUN, Type: HostSees}}
	if x.vol, err = a.volume("volumeName", s.Volume); err != nil {
		return nil, err
	}
	if x.host, x.set, err = a.hostOrSet(s.Host); err != nil {
		return nil, err
	}
	if x.set != nil {
		x.Type = ToHostSet
		if s.Port != nil {
			return nil, &Error{Kind: MatchedHostSet, Field: "portPos", Value: s.Port.String(), Reason: "not with a set of hosts"}
		}
	}
	if s.Port != nil {
		at, err := a.port(*s.Port)
		if err != nil {
			return nil, err
		}
		if !at.forHosts() {
			return nil, &Error{Kind: BadPortType, Field: "portPos", Value: s.Port.String(), Reason: "no port for hosts"}
		}
		x.Port, x.Type = &at.PortPos, MatchedSet
		if x.host == nil {
			x.Type = PortPresents
		}
	}
	return x, nil
}

// hostOrSet finds what a hostname of an export stands for: a host, a set of
// them (set:NAME), or nothing where it is empty.
func (a *Array) hostOrSet(name string) (h *host, set *hostSet, err error) {
	if of, ok := strings.CutPrefix(name, setPrefix); ok {
		set, err = a.hostSet(of)
	} else if name != "" {
		h, err = a.host("hostname", name)
	}
	return h, set, err
}

// hosts are those that an export goes to.
func (x *vlun) hosts() []*host {
	switch {
	case x.set != nil:
		return x.set.members
	case x.host != nil:
		return []*host{x.host}
	}
	return nil
}

func otherDomain(target, domain string, v *volume) error {
	return &Error{Kind: OtherDomain, Field: "hostname", Value: target, Reason: fmt.Sprintf("it is in domain %q, the volume in %q", domain, v.Domain)}
}

// pickLUN chooses or checks the LUN of an export.
func (a *Array) pickLUN(x *vlun, s VLUNSpec) error {
	hosts := x.hosts()
	var at *port
	if x.Port != nil {
		at = a.ports[*x.Port]
	}
	tables := []*lunTable{}
	if at != nil && x.host == nil {
		tables = append(tables, &at.luns)
	}
	for _, h := range hosts {
		tables = append(tables, &h.luns)
	}
	has := -1 // the LUN that the volume has there
	for _, t := range tables {
		u, ok := t.of[x.vol]
		switch {
		case !ok:
		case has < 0:
			has = u.lun
		case has != u.lun:
			return &Error{Kind: LUNConflict, Field: "hostname", Value: s.Host, Reason: fmt.Sprintf("hosts of the set have the volume at LUN %d and %d", has, u.lun)}
		}
	}
	lun := s.LUN
	if s.Auto {
		if lun = has; lun < 0 {
			to := MaxLUN
			if s.MaxAuto > 0 {
				to = s.MaxAuto
			}
			ok := false
			lun, ok = lowest(tables, s.LUN, to, func(n int) bool {
				return slices.ContainsFunc(hosts, func(h *host) bool { return h.Persona.reserves(n) }) || !s.Override && a.presented(n, x, at) != nil
			})
			if !ok {
				return &Error{Kind: AutoLUNUnavailable, Field: "lun", Value: fmt.Sprint(s.LUN), Reason: fmt.Sprintf("none is free up to %d", to)}
			}
		}
	} else if has >= 0 && has != lun {
		// Unverified: the code for a second LUN of a volume on one host.
		return &Error{Kind: ExistentLUN, Field: "lun", Value: fmt.Sprint(lun), Reason: fmt.Sprintf("the volume is there at LUN %d", has), Holder: x.vol.Name}
	}
	for _, t := range tables {
		if w := t.at[lun]; w != nil && w != x.vol {
			return &Error{Kind: ExistentLUN, Field: "lun", Value: fmt.Sprint(lun), Reason: "another volume has the LUN", Holder: w.Name}
		}
	}
	for _, h := range hosts {
		if h.Persona.reserves(lun) {
			return &Error{Kind: PersonaConflict, Field: "lun", Value: fmt.Sprint(lun), Reason: fmt.Sprintf("hosts of persona %d have a device of the array there", h.Persona), Holder: h.Name}
		}
	}
	if !s.Override {
		if w := a.presented(lun, x, at); w != nil {
			return &Error{Kind: ExistentLUN, Field: "lun", Value: fmt.Sprint(lun), Reason: "a port presents another volume at the LUN", Holder: w.Name}
		}
	}
	x.LUN = lun
	return nil
}

// presented finds another volume that ports present at a LUN: the port of a
// matched set, or any that a host may see.
func (a *Array) presented(lun int, x *vlun, at *port) *volume {
	if x.host == nil && x.set == nil {
		return nil
	}
	if at != nil {
		if w := at.luns.at[lun]; w != x.vol {
			return w
		}
		return nil
	}
	for _, pos := range slices.SortedFunc(maps.Keys(a.exportsPort), PortPos.compare) {
		if w := a.ports[pos].luns.at[lun]; w != nil && w != x.vol {
			return w
		}
	}
	return nil
}

// PlanVLUN checks whether CreateVLUN would succeed, and says what it would
// make.
func (a *Array) PlanVLUN(s VLUNSpec) (VLUN, error) {
	if strings.HasPrefix(s.Volume, setPrefix) {
		x, err := a.createSetVLUN(time.Time{}, s)
		if err != nil {
			return VLUN{}, err
		}
		a.withdraw(x)
		return x.out().VLUN, nil
	}
	x, err := a.planVLUN(s)
	if err != nil {
		return VLUN{}, err
	}
	return x.out(), nil
}

// CreateVLUN exports a volume, or each of a set. A host has a volume at one LUN only, and one
// volume at a LUN only, over whatever ports. Errors:
// INV_INPUT_MISSING_REQUIRED, MISSING_VLUN_EXPORT_INFO, NON_EXISTENT_VOL,
// NON_EXISTENT_HOST, NON_EXISTENT_SET, NON_EXISTENT_PORT,
// INV_INPUT_PORT_SPECIFICATION, BAD_PORT_TYPE, INV_INPUT_MATCHED_HOSTSET,
// INV_INPUT_EXCEEDS_RANGE, TOO_LARGE, EXISTENT_LUN, AUTO_LUN_ID_UNAVAILABLE,
// LUN_HOSTPERSONA_CONFLICT, INV_OPERATION_VLUN_PCOPY_TARGET_VV,
// INV_INPUT_PARAM_CONFLICT, MEMBER_NOT_IN_SAME_DOMAIN, VV_IN_STALE_STATE, EMPTY_SET.
func (a *Array) CreateVLUN(now time.Time, s VLUNSpec) (VLUN, error) {
	if strings.HasPrefix(s.Volume, setPrefix) {
		x, err := a.createSetVLUN(now, s)
		if err != nil {
			return VLUN{}, err
		}
		a.keepSetVLUN(x)
		a.log(now, Added, "vlun", x.volume())
		return x.out().VLUN, nil
	}
	x, err := a.planVLUN(s)
	if err != nil {
		return VLUN{}, err
	}
	x.Created = now
	a.export(x)
	a.log(now, Added, "vlun", x.vol.Name)
	return x.out(), nil
}

// export puts an export into every index.
func (a *Array) export(x *vlun) {
	a.vluns.put(x.key(), x)
	a.exports.add(x.vol, x)
	switch {
	case x.set != nil:
		a.exportsSet.add(x.set, x)
		for _, h := range x.set.members {
			h.luns.take(x.vol, x.LUN)
		}
	case x.host != nil:
		a.exportsTo.add(x.host, x)
		x.host.luns.take(x.vol, x.LUN)
	default:
		a.exportsPort.add(*x.Port, x)
		a.ports[*x.Port].luns.take(x.vol, x.LUN)
	}
}

func (a *Array) unexport(x *vlun) {
	a.vluns.drop(x.key())
	a.exports.drop(x.vol, x)
	switch {
	case x.set != nil:
		a.exportsSet.drop(x.set, x)
		for _, h := range x.set.members {
			h.luns.release(x.vol)
		}
	case x.host != nil:
		a.exportsTo.drop(x.host, x)
		x.host.luns.release(x.vol)
	default:
		a.exportsPort.drop(*x.Port, x)
		a.ports[*x.Port].luns.release(x.vol)
	}
}

// VLUNKey names an export.
type VLUNKey struct {
	Volume string // or set:NAME
	LUN    int
	Host   string // or set:NAME; empty where a port presents
	Port   *PortPos
}

// check refuses what is no name of an export.
func (k VLUNKey) check() error {
	if k.Volume == "" || k.Host == "" && k.Port == nil {
		return &Error{Kind: MissingRequired, Field: "vlun", Value: k.Volume, Reason: "volume, LUN, and host or port are required"}
	}
	if k.LUN < 0 || k.LUN > MaxLUN {
		return &Error{Kind: ExceedsRange, Field: "lun", Value: fmt.Sprint(k.LUN), Reason: fmt.Sprintf("allowed are 0 to %d", MaxLUN)}
	}
	if k.Port != nil {
		return k.Port.inRange()
	}
	return nil
}

func (k VLUNKey) ofSet() bool { return strings.HasPrefix(k.Volume, setPrefix) }

func noVLUN(k VLUNKey) error {
	return &Error{Kind: NonExistentVLUN, Field: "vlun", Value: fmt.Sprintf("%s,%d,%s", k.Volume, k.LUN, k.Host), Reason: "no such export"}
}

// vlun finds the export of one volume, not one by way of a set.
func (a *Array) vlun(k VLUNKey) (*vlun, error) {
	var key vlunKey
	var err error
	if key.host, key.set, err = a.hostOrSet(k.Host); err != nil {
		return nil, err
	}
	if k.Port != nil {
		key.port = *k.Port
	}
	key.vol, _ = a.volumes.get(k.Volume)
	if x, ok := a.vluns.get(key); ok && x.LUN == k.LUN && x.via == nil {
		return x, nil
	}
	return nil, noVLUN(k)
}

// DeleteVLUN ends an export. What a host does with its paths is the host's: the
// LUN is free at once, and the next volume may get it. Errors:
// INV_INPUT_MISSING_REQUIRED, INV_INPUT_EXCEEDS_RANGE, NON_EXISTENT_HOST,
// NON_EXISTENT_SET, INV_INPUT_PORT_SPECIFICATION, NON_EXISTENT_VLUN.
func (a *Array) DeleteVLUN(now time.Time, k VLUNKey) (VLUN, error) {
	if err := k.check(); err != nil {
		return VLUN{}, err
	}
	if k.ofSet() {
		return a.deleteSetVLUN(now, k)
	}
	x, err := a.vlun(k)
	if err != nil {
		return VLUN{}, err
	}
	o := x.out()
	a.unexport(x)
	a.log(now, Removed, "vlun", o.Volume)
	return o, nil
}

// VLUN returns an export. Errors: as DeleteVLUN.
func (a *Array) VLUN(k VLUNKey) (VLUN, error) {
	if err := k.check(); err != nil {
		return VLUN{}, err
	}
	if k.ofSet() {
		s, err := a.setVLUN(k)
		if err != nil {
			return VLUN{}, err
		}
		return s.out().VLUN, nil
	}
	x, err := a.vlun(k)
	if err != nil {
		return VLUN{}, err
	}
	return x.out(), nil
}

// VLUNs returns all exports of volumes, oldest first; those by way of a set say
// so.
func (a *Array) VLUNs() []VLUN {
	out := make([]VLUN, 0, a.vluns.len())
	for x := range a.vluns.all() {
		out = append(out, x.out())
	}
	return out
}

// VLUNsOf returns the exports of a volume.
func (a *Array) VLUNsOf(volume string) []VLUN {
	v, ok := a.volumes.get(volume)
	if !ok {
		return nil
	}
	return sorted(a.exports[v])
}

// VLUNsTo returns the exports to a host, or to a set of them (set:NAME), not
// those to sets that a host is in.
func (a *Array) VLUNsTo(name string) []VLUN {
	if n, set := strings.CutPrefix(name, setPrefix); set {
		s, ok := a.hostSets.get(n)
		if !ok {
			return nil
		}
		return sorted(a.exportsSet[s])
	}
	h, ok := a.hosts.get(name)
	if !ok {
		return nil
	}
	return sorted(a.exportsTo[h])
}

func sorted(s map[*vlun]struct{}) []VLUN {
	var out []VLUN
	for _, x := range inOrder(s) {
		out = append(out, x.out())
	}
	return out
}

// inOrder has exports by LUN, volume, and to whom they go.
func inOrder(s map[*vlun]struct{}) []*vlun {
	return slices.SortedFunc(maps.Keys(s), func(x, y *vlun) int {
		var p, q PortPos
		if x.Port != nil {
			p = *x.Port
		}
		if y.Port != nil {
			q = *y.Port
		}
		return cmp.Or(cmp.Compare(x.LUN, y.LUN), cmp.Compare(x.vol.Name, y.vol.Name), cmp.Compare(x.target(), y.target()), p.compare(q))
	})
}

// exportOf names one to whom a volume is exported, or "".
func (a *Array) exportOf(v *volume) string {
	if x, some := least(a.exports[v], (*vlun).target); some {
		return x.target()
	}
	return ""
}

// Device is what an initiator finds at a LUN of a port.
type Device struct {
	LUN      int
	Volume   string
	WWN      string
	SizeMiB  int64
	ReadOnly bool
	Image    string
	// Standby: the paths of this array don't take I/O, as the volume is the
	// secondary one of a started remote copy group.
	Standby bool
	// Distant: they do, but those of the other array are better.
	Distant bool
}

// Devices are what an initiator finds at a port, by LUN: what is exported to
// its host, and then what the port presents at other LUNs. It need not be
// logged in.
func (a *Array) Devices(path Path, pos PortPos) []Device {
	p, ok := a.ports[pos]
	if !ok || p.State != LinkReady || p.Protocol != path.Protocol {
		return nil
	}
	at := map[int]*volume{}
	there := map[*volume]bool{}
	if h := a.paths[path.normal()]; h != nil {
		for x := range a.exportsTo[h] {
			if x.Port == nil || *x.Port == pos {
				at[x.LUN], there[x.vol] = x.vol, true
			}
		}
		for s := range a.hostSetsOf[h] {
			for x := range a.exportsSet[s] {
				at[x.LUN], there[x.vol] = x.vol, true
			}
		}
	}
	for x := range a.exportsPort[pos] {
		if at[x.LUN] == nil && !there[x.vol] {
			at[x.LUN] = x.vol
		}
	}
	out := make([]Device, 0, len(at))
	for lun, v := range at {
		out = append(out, v.device(lun))
	}
	slices.SortFunc(out, func(d, e Device) int { return cmp.Compare(d.LUN, e.LUN) })
	return out
}

// Device is what an initiator finds at one LUN of a port, as Devices has it, at
// a cost that does not grow with what is exported.
func (a *Array) Device(path Path, pos PortPos, lun int) (Device, bool) {
	p, ok := a.ports[pos]
	if !ok || p.State != LinkReady || p.Protocol != path.Protocol {
		return Device{}, false
	}
	h := a.paths[path.normal()]
	v := p.luns.at[lun]
	if h != nil {
		if w := h.luns.at[lun]; w != nil && a.seen(h, w, pos) {
			v = w
		} else if v != nil && a.seen(h, v, pos) { // at another LUN
			v = nil
		}
	}
	if v == nil {
		return Device{}, false
	}
	return v.device(lun), true
}

// seen says whether a volume is exported to a host over a port.
func (a *Array) seen(h *host, v *volume, pos PortPos) bool {
	if a.vluns.has(vlunKey{vol: v, host: h}) || a.vluns.has(vlunKey{vol: v, host: h, port: pos}) {
		return true
	}
	for s := range a.hostSetsOf[h] {
		if a.vluns.has(vlunKey{vol: v, set: s}) {
			return true
		}
	}
	return false
}

func (v *volume) device(lun int) Device {
	return Device{lun, v.Name, v.WWN, v.SizeMiB, v.ReadOnly, v.Image, v.standby(), v.distant()}
}

// ActiveVLUN is an export in effect over one path.
type ActiveVLUN struct {
	VLUN
	Path Path
}

// ActiveVLUNs returns what of the exports to a host is in effect: one for each
// path over which it is logged in.
func (a *Array) ActiveVLUNs(hostName string) []ActiveVLUN {
	h, ok := a.hosts.get(hostName)
	if !ok {
		return nil
	}
	var out []ActiveVLUN
	for _, path := range h.all() {
		for _, pos := range a.LoggedIn(path) {
			for _, d := range a.Devices(path, pos) {
				p := pos
				out = append(out, ActiveVLUN{VLUN{Volume: d.Volume, WWN: d.WWN, LUN: d.LUN, Host: h.Name, Port: &p, Type: HostSees}, path})
			}
		}
	}
	return out
}
