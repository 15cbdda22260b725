package array

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"
)

// MaxPaths is how many WWNs or iSCSI names a request may have.
const MaxPaths = 1024

// Path is an initiator.
type Path struct {
	Protocol Protocol `json:"protocol"`
	Name     string   `json:"name"` // WWN (16 hex digits, upper case), iSCSI name or NQN
}

// normal is a path as the array keeps it.
func (p Path) normal() Path {
	switch p.Protocol {
	case FC:
		p.Name = strings.ToUpper(p.Name)
	case ISCSI:
		p.Name = strings.ToLower(p.Name) // RFC 3722: names compare without case
	}
	return p
}

// Persona is how the array behaves to a host, numbered as the WSAPI does.
type Persona int

// The personas.
const (
	Generic Persona = iota + 1
	GenericALUA
	GenericLegacy
	HPUXLegacy
	AIXLegacy
	Egenera
	ONTAPLegacy
	VMware
	OpenVMS
	HPUX
	Windows
)

// reserves says whether hosts find a device of the array itself at a LUN. What
// is known is that there is a conflict with VMware's (python-3parclient#73,
// LUN 256), with SES devices and with OpenVMS's console. Unverified: that these
// are the personas and LUNs.
func (p Persona) reserves(lun int) bool {
	switch p {
	case Generic, GenericALUA:
		return lun == 254
	case VMware:
		return lun == 256
	case OpenVMS:
		return lun == 0
	}
	return false
}

// Descriptors say what a host is.
type Descriptors struct {
	Location string `json:"location,omitempty"`
	IPAddr   string `json:"IPAddr,omitempty"`
	OS       string `json:"os,omitempty"`
	Model    string `json:"model,omitempty"`
	Contact  string `json:"contact,omitempty"`
	Comment  string `json:"comment,omitempty"`
}

func (d Descriptors) check() error {
	for _, x := range [][2]string{{"location", d.Location}, {"IPAddr", d.IPAddr}, {"os", d.OS}, {"model", d.Model}, {"contact", d.Contact}} {
		if err := checkText(x[0], x[1], MaxDescription); err != nil {
			return err
		}
	}
	return checkText("comment", d.Comment, MaxComment)
}

// Host is who volumes are exported to. Secrets are not handed out.
type Host struct {
	ID          int64       `json:"id"`
	Name        string      `json:"name"`
	Domain      string      `json:"domain,omitempty"`
	Persona     Persona     `json:"persona"`
	FCWWNs      []string    `json:"fcWWNs,omitempty"`
	ISCSINames  []string    `json:"iscsiNames,omitempty"`
	NQNs        []string    `json:"nqns,omitempty"`
	Descriptors Descriptors `json:"descriptors,omitzero"`
	// CHAPName is what the host authenticates as, TargetCHAPName the array to
	// it; empty without.
	CHAPName       string `json:"chapName,omitempty"`
	TargetCHAPName string `json:"targetCHAPName,omitempty"`
}

type host struct {
	Host
	secret, targetSecret string // CHAP
	luns                 lunTable
}

func (h *host) out() Host {
	o := h.Host
	o.FCWWNs, o.ISCSINames, o.NQNs = slices.Clone(h.FCWWNs), slices.Clone(h.ISCSINames), slices.Clone(h.NQNs)
	return o
}

// all are the paths of a host.
func (h *host) all() []Path { return pathsOf(h.FCWWNs, h.ISCSINames, h.NQNs) }

func pathsOf(wwns, iqns, nqns []string) []Path {
	out := make([]Path, 0, len(wwns)+len(iqns)+len(nqns))
	for _, n := range wwns {
		out = append(out, Path{FC, n})
	}
	for _, n := range iqns {
		out = append(out, Path{ISCSI, n})
	}
	for _, n := range nqns {
		out = append(out, Path{NVMe, n})
	}
	return out
}

// takes says whether a volume could be at a LUN of the host.
func (h *host) takes(v *volume, lun int) error {
	if w := h.luns.at[lun]; w != nil && w != v {
		return &Error{Kind: ExistentLUN, Field: "lun", Value: fmt.Sprint(lun), Reason: "another volume has the LUN", Holder: w.Name}
	}
	if u, ok := h.luns.of[v]; ok && u.lun != lun {
		return &Error{Kind: ExistentLUN, Field: "lun", Value: fmt.Sprint(lun), Reason: fmt.Sprintf("the volume is there at LUN %d", u.lun), Holder: v.Name}
	}
	if h.Persona.reserves(lun) {
		return &Error{Kind: PersonaConflict, Field: "lun", Value: fmt.Sprint(lun), Reason: "the persona reserves it", Holder: h.Name}
	}
	return nil
}

// HostSpec says what host to make: with WWNs, iSCSI names or NQNs, of one kind
// at most.
type HostSpec struct {
	Name, Domain             string
	Persona                  Persona // 0: GenericALUA
	FCWWNs, ISCSINames, NQNs []string
	Descriptors              Descriptors
}

// checkPaths refuses what are no initiators, and returns them as they are kept.
func checkPaths(wwns, iqns, nqns []string) ([]Path, error) {
	kinds := 0
	for _, n := range [][]string{wwns, iqns, nqns} {
		if len(n) > 0 {
			kinds++
		}
	}
	if kinds > 1 {
		return nil, &Error{Kind: ParamConflict, Field: "iSCSINames", Reason: "FCWWNs, iSCSINames and NQNs don't go together"}
	}
	if n := len(wwns) + len(iqns) + len(nqns); n > MaxPaths {
		return nil, &Error{Kind: TooManyPaths, Field: "FCWWNs", Value: fmt.Sprint(n), Reason: fmt.Sprintf("allowed are %d", MaxPaths)}
	}
	paths := pathsOf(wwns, iqns, nqns)
	seen := make(map[Path]bool, len(paths))
	for i, p := range paths {
		switch p.Protocol {
		case FC:
			if _, err := hex.DecodeString(p.Name); err != nil || len(p.Name) != 16 {
				return nil, &Error{Kind: WrongType, Field: "FCWWNs", Value: p.Name, Reason: "allowed are 16 hex digits"}
			}
		default:
			field := "iSCSINames"
			if p.Protocol == NVMe {
				field = "NQNs"
			}
			if p.Name == "" {
				return nil, &Error{Kind: EmptyString, Field: field, Reason: "an empty name"}
			}
			if len(p.Name) > MaxISCSIName {
				return nil, &Error{Kind: ExceedsLength, Field: field, Value: p.Name[:32] + "...", Reason: fmt.Sprintf("allowed are %d bytes", MaxISCSIName)}
			}
			if i := strings.IndexFunc(p.Name, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`,"'\/`, r) }); i >= 0 {
				return nil, &Error{Kind: IllegalChar, Field: field, Value: p.Name, Reason: "allowed is what initiators are named with"}
			}
		}
		paths[i] = p.normal()
		if seen[paths[i]] {
			return nil, &Error{Kind: DuplicatePath, Field: "FCWWNs", Value: p.Name, Reason: "given twice"}
		}
		seen[paths[i]] = true
	}
	return paths, nil
}

// CreateHost makes a host. Errors: names, EXISTENT_HOST, NON_EXISTENT_DOMAIN,
// INV_INPUT_BAD_ENUM_VALUE, INV_INPUT_PARAM_CONFLICT,
// INV_INPUT_TOO_MANY_WWN_OR_iSCSI, INV_INPUT_WRONG_TYPE, INV_INPUT_EMPTY_STR,
// INV_INPUT_EXCEEDS_LENGTH, INV_INPUT_ILLEGAL_CHAR, INV_INPUT_DUP_PATH,
// EXISTENT_PATH.
func (a *Array) CreateHost(now time.Time, s HostSpec) (Host, error) {
	if err := checkName("name", s.Name, MaxName); err != nil {
		return Host{}, err
	}
	if a.hosts.has(s.Name) {
		return Host{}, &Error{Kind: ExistentHost, Field: "name", Value: s.Name, Reason: "a host has this name"}
	}
	if err := a.checkDomain(s.Domain); err != nil {
		return Host{}, err
	}
	if s.Persona < 0 || s.Persona > Windows {
		return Host{}, &Error{Kind: BadEnum, Field: "persona", Value: fmt.Sprint(int(s.Persona)), Reason: "allowed are 1 to 11"}
	}
	if s.Persona == 0 {
		s.Persona = GenericALUA
	}
	if err := s.Descriptors.check(); err != nil {
		return Host{}, err
	}
	paths, err := checkPaths(s.FCWWNs, s.ISCSINames, s.NQNs)
	if err != nil {
		return Host{}, err
	}
	if err := a.unclaimed(paths, nil); err != nil {
		return Host{}, err
	}
	a.hostSeq++
	h := &host{Host: Host{ID: a.hostSeq, Name: s.Name, Domain: s.Domain, Persona: s.Persona, Descriptors: s.Descriptors}}
	a.hosts.put(h.Name, h)
	for _, p := range paths {
		a.claim(h, p)
	}
	a.log(now, Added, "host", h.Name)
	return h.out(), nil
}

// unclaimed refuses paths that a host has. Unverified: that a path which the
// host has itself is refused likewise.
func (a *Array) unclaimed(paths []Path, self *host) error {
	for _, p := range paths {
		if h := a.paths[p]; h != nil {
			if h == self {
				return &Error{Kind: DuplicatePath, Field: "path", Value: p.Name, Reason: "the host has it already"}
			}
			return &Error{Kind: ExistentPath, Field: "path", Value: p.Name, Reason: "another host has it", Holder: h.Name}
		}
	}
	return nil
}

func (h *host) list(p Protocol) *[]string {
	switch p {
	case FC:
		return &h.FCWWNs
	case ISCSI:
		return &h.ISCSINames
	}
	return &h.NQNs
}

func (a *Array) claim(h *host, p Path) {
	a.paths[p] = h
	l := h.list(p.Protocol)
	*l = append(*l, p.Name)
}

func (a *Array) unclaim(h *host, p Path) {
	delete(a.paths, p)
	l := h.list(p.Protocol)
	*l = slices.DeleteFunc(slices.Clone(*l), func(n string) bool { return n == p.Name })
	if len(*l) == 0 {
		*l = nil
	}
}

// EditOp says whether something is added or removed, numbered as the WSAPI does.
type EditOp int

// The edits.
const (
	EditAdd    EditOp = 1
	EditRemove EditOp = 2
)

// CHAPMode says who authenticates, numbered as the WSAPI does.
type CHAPMode int

// The modes.
const (
	CHAPInitiator CHAPMode = 1
	CHAPTarget    CHAPMode = 2
)

// HostChange says what to change: names and persona, or paths, or CHAP.
type HostChange struct {
	NewName     *string
	Persona     *Persona
	Descriptors *Descriptors

	PathOp                   EditOp
	FCWWNs, ISCSINames, NQNs []string
	Force                    bool // removes paths under exports

	CHAPOp     EditOp
	CHAPMode   CHAPMode
	CHAPName   string // default: the host's name
	CHAPSecret string
	CHAPHex    bool
	TargetOnly bool // removes the target's CHAP only
}

func (ch HostChange) paths() int { return len(ch.FCWWNs) + len(ch.ISCSINames) + len(ch.NQNs) }

// check holds the rules of the guide about what goes with what.
func (ch HostChange) check() error {
	conflict := func(field, reason string) error {
		return &Error{Kind: ParamConflict, Field: field, Reason: reason}
	}
	named := ch.NewName != nil || ch.Persona != nil
	switch {
	case ch.PathOp != 0 && ch.PathOp != EditAdd && ch.PathOp != EditRemove:
		return &Error{Kind: BadEnum, Field: "pathOperation", Value: fmt.Sprint(int(ch.PathOp)), Reason: "allowed are 1 and 2"}
	case ch.CHAPOp != 0 && ch.CHAPOp != EditAdd && ch.CHAPOp != EditRemove:
		return &Error{Kind: BadEnum, Field: "chapOperation", Value: fmt.Sprint(int(ch.CHAPOp)), Reason: "allowed are 1 and 2"}
	case ch.PathOp != 0 && (named || ch.CHAPOp != 0):
		return conflict("pathOperation", "not with newName, persona or chapOperation")
	case ch.CHAPOp != 0 && named:
		return conflict("chapOperation", "not with newName or persona")
	case ch.PathOp == EditAdd && ch.Force:
		return conflict("forcePathRemoval", "only with removal")
	case ch.CHAPOp == EditAdd && ch.TargetOnly:
		return conflict("chapRemoveTargetOnly", "only with removal")
	case ch.CHAPOp == EditRemove && (ch.CHAPSecret != "" || ch.CHAPMode != 0 || ch.CHAPName != "" || ch.CHAPHex):
		return conflict("chapOperation", "a removal has no name, secret or mode")
	case ch.PathOp != 0 && ch.paths() == 0:
		return &Error{Kind: OneRequired, Field: "pathOperation", Reason: "FCWWNs, iSCSINames or NQNs are required"}
	case ch.PathOp == 0 && (ch.paths() > 0 || ch.Force):
		return &Error{Kind: OneRequired, Field: "FCWWNs", Reason: "pathOperation is required"}
	case ch.PathOp == 0 && ch.CHAPOp == 0 && !named && ch.Descriptors == nil:
		return &Error{Kind: OneRequired, Field: "newName", Reason: "nothing to change"}
	case ch.CHAPOp == EditAdd && ch.CHAPMode != CHAPInitiator && ch.CHAPMode != CHAPTarget:
		return &Error{Kind: BadEnum, Field: "chapOperationMode", Value: fmt.Sprint(int(ch.CHAPMode)), Reason: "allowed are 1 and 2"}
	case ch.CHAPOp == EditAdd && ch.CHAPSecret == "":
		return &Error{Kind: MissingRequired, Field: "chapSecret", Reason: "a secret is required"}
	}
	return nil
}

// checkSecret refuses a CHAP secret of the wrong length.
func checkSecret(secret string, isHex bool) error {
	if isHex {
		if _, err := hex.DecodeString(secret); err != nil || len(secret) != 32 {
			return &Error{Kind: CHAPLength, Field: "chapSecret", Reason: "allowed are 16 bytes in hex"}
		}
		return nil
	}
	if len(secret) < 12 || len(secret) > 16 {
		return &Error{Kind: CHAPLength, Field: "chapSecret", Reason: "allowed are 12 to 16 characters"}
	}
	return nil
}

// ModifyHost changes a host. Errors: NON_EXISTENT_HOST, EXISTENT_HOST, those of
// CreateHost for what is given, INV_INPUT_ONE_REQUIRED,
// INV_INPUT_PARAM_CONFLICT, NON_EXISTENT_PATH, EXPORTED_VLUN (persona, or paths
// in use), LUN_HOSTPERSONA_CONFLICT, INV_INPUT_BAD_LENGTH, NO_INITIATOR_CHAP,
// NON_EXISTENT_CHAP, NON_UNIQUE_CHAP_SECRET.
func (a *Array) ModifyHost(now time.Time, name string, ch HostChange) (Host, error) {
	h, err := a.host("name", name)
	if err != nil {
		return Host{}, err
	}
	if err := ch.check(); err != nil {
		return Host{}, err
	}
	n := h.Host
	if ch.NewName != nil && *ch.NewName != name {
		n.Name = *ch.NewName
		if err := checkName("newName", n.Name, MaxName); err != nil {
			return Host{}, err
		}
		if a.hosts.has(n.Name) {
			return Host{}, &Error{Kind: ExistentHost, Field: "newName", Value: n.Name, Reason: "a host has this name"}
		}
	}
	if ch.Persona != nil && *ch.Persona != n.Persona {
		n.Persona = *ch.Persona
		if n.Persona < Generic || n.Persona > Windows {
			return Host{}, &Error{Kind: BadEnum, Field: "persona", Value: fmt.Sprint(int(n.Persona)), Reason: "allowed are 1 to 11"}
		}
		if x := a.inUse(h, nil); x != "" {
			return Host{}, &Error{Kind: Exported, Field: "persona", Value: fmt.Sprint(int(n.Persona)), Reason: "the host has active exports", Holder: x}
		}
		for _, lun := range []int{0, 254, 256} {
			if h.luns.at[lun] != nil && n.Persona.reserves(lun) {
				return Host{}, &Error{Kind: PersonaConflict, Field: "persona", Value: fmt.Sprint(int(n.Persona)), Reason: fmt.Sprintf("the persona reserves LUN %d", lun), Holder: h.luns.at[lun].Name}
			}
		}
	}
	if ch.Descriptors != nil {
		if err := ch.Descriptors.check(); err != nil {
			return Host{}, err
		}
		n.Descriptors = *ch.Descriptors
	}
	paths, err := checkPaths(ch.FCWWNs, ch.ISCSINames, ch.NQNs)
	if err != nil {
		return Host{}, err
	}
	if ch.PathOp == EditAdd {
		if err := a.unclaimed(paths, h); err != nil {
			return Host{}, err
		}
		if len(h.all())+len(paths) > MaxPaths {
			return Host{}, &Error{Kind: TooManyPaths, Field: "FCWWNs", Value: fmt.Sprint(len(paths)), Reason: fmt.Sprintf("the host has %d, allowed are %d", len(h.all()), MaxPaths)}
		}
	}
	if ch.PathOp == EditRemove {
		for _, p := range paths {
			if a.paths[p] != h {
				return Host{}, &Error{Kind: NonExistentPath, Field: "path", Value: p.Name, Reason: "the host has no such path"}
			}
			if x := a.inUse(h, &p); x != "" && !ch.Force {
				return Host{}, &Error{Kind: Exported, Field: "path", Value: p.Name, Reason: "an export is active over the path", Holder: x}
			}
		}
	}
	secret, targetSecret := h.secret, h.targetSecret
	switch ch.CHAPOp {
	case EditAdd:
		if err := a.addCHAP(h, ch, &n, &secret, &targetSecret); err != nil {
			return Host{}, err
		}
	case EditRemove:
		if h.targetSecret == "" && (ch.TargetOnly || h.secret == "") {
			return Host{}, &Error{Kind: NonExistentCHAP, Field: "chapOperation", Reason: "the host has none"}
		}
		targetSecret, n.TargetCHAPName = "", ""
		if !ch.TargetOnly {
			secret, n.CHAPName = "", ""
		}
	}
	if n.Name != name {
		a.hosts.rename(name, n.Name)
	}
	h.Host, h.secret, h.targetSecret = n, secret, targetSecret
	for _, p := range paths {
		if ch.PathOp == EditAdd {
			a.claim(h, p)
		} else {
			a.unclaim(h, p)
		}
	}
	a.log(now, Changed, "host", n.Name)
	return h.out(), nil
}

func (a *Array) addCHAP(h *host, ch HostChange, n *Host, secret, targetSecret *string) error {
	if err := checkSecret(ch.CHAPSecret, ch.CHAPHex); err != nil {
		return err
	}
	name := ch.CHAPName
	if name == "" {
		name = h.Name
	}
	if err := checkText("chapName", name, MaxISCSIName); err != nil {
		return err
	}
	if ch.CHAPMode == CHAPTarget {
		if h.secret == "" {
			return &Error{Kind: NoInitiatorCHAP, Field: "chapOperationMode", Value: "2", Reason: "the host has no CHAP of its own"}
		}
		if h.secret == ch.CHAPSecret {
			// Unverified: unique between the two of a host, not over all hosts.
			return &Error{Kind: CHAPNotUnique, Field: "chapSecret", Reason: "the host's own secret"}
		}
		*targetSecret, n.TargetCHAPName = ch.CHAPSecret, name
		return nil
	}
	if h.targetSecret != "" && h.targetSecret == ch.CHAPSecret {
		return &Error{Kind: CHAPNotUnique, Field: "chapSecret", Reason: "the target's secret"}
	}
	*secret, n.CHAPName = ch.CHAPSecret, name
	return nil
}

// CHAP says whether an initiator may log in with a name and a secret. One that
// no host has is let in, it finds nothing.
func (a *Array) CHAP(path Path, name, secret string) bool {
	h := a.paths[path.normal()]
	return h == nil || h.secret == "" || h.CHAPName == name && h.secret == secret
}

// inUse names a volume that a host has over active paths, over one or any.
func (a *Array) inUse(h *host, one *Path) string {
	if len(h.luns.at) == 0 {
		return ""
	}
	paths := h.all()
	if one != nil {
		paths = []Path{*one}
	}
	for _, p := range paths {
		for _, pos := range a.LoggedIn(p) {
			if d := a.Devices(p, pos); len(d) > 0 {
				return d[0].Volume
			}
		}
	}
	return ""
}

// DeleteHost drops a host. Errors: NON_EXISTENT_HOST, EXPORTED_VLUN,
// HOST_IN_SET.
func (a *Array) DeleteHost(now time.Time, name string) error {
	h, err := a.host("name", name)
	if err != nil {
		return err
	}
	if x, some := least(a.exportsTo[h], (*vlun).volume); some {
		return &Error{Kind: Exported, Field: "name", Value: name, Reason: "a volume is exported to the host", Holder: x.vol.Name}
	}
	if s, some := least(a.hostSetsOf[h], func(s *hostSet) string { return s.Name }); some {
		return &Error{Kind: HostInSet, Field: "name", Value: name, Reason: "the host is in a set", Holder: s.Name}
	}
	for _, p := range h.all() {
		delete(a.paths, p)
	}
	a.hosts.drop(name)
	a.log(now, Removed, "host", name)
	return nil
}

func (a *Array) host(field, name string) (*host, error) {
	if h, ok := a.hosts.get(name); ok {
		return h, nil
	}
	if err := checkName(field, name, MaxName); err != nil {
		return nil, err
	}
	return nil, &Error{Kind: NonExistentHost, Field: field, Value: name, Reason: "no such host"}
}

// Host returns a host. Errors: NON_EXISTENT_HOST.
func (a *Array) Host(name string) (Host, error) {
	h, err := a.host("name", name)
	if err != nil {
		return Host{}, err
	}
	return h.out(), nil
}

// HostByPath finds the host that an initiator belongs to.
func (a *Array) HostByPath(p Path) (Host, bool) {
	h, ok := a.paths[p.normal()]
	if !ok {
		return Host{}, false
	}
	return h.out(), true
}

// Hosts returns all hosts, oldest first.
func (a *Array) Hosts() []Host {
	out := make([]Host, 0, a.hosts.len())
	for h := range a.hosts.all() {
		out = append(out, h.out())
	}
	return out
}
