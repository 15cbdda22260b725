package csp

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/csilab/csilab/sim/csp/wsapi"
)

// hostBody is a host as the API has it.
type hostBody struct {
	ID             string   `json:"id,omitempty"`
	Name           string   `json:"name"`
	UUID           string   `json:"uuid"`
	IQNs           []string `json:"iqns"`
	WWPNs          []string `json:"wwpns"`
	NQNs           []string `json:"nqns"`
	Networks       []string `json:"networks"`
	CHAPUser       string   `json:"chap_user,omitempty"`
	CHAPPassword   string   `json:"chap_password,omitempty"`
	AccessProtocol string   `json:"access_protocol,omitempty"`
	VirtualDomain  string   `json:"virtual_domain,omitempty"`
}

// hostMark is what the comment of an array's host says.
type hostMark struct {
	UUID string `json:"uuid"`
	Name string `json:"name,omitempty"`
}

func markOf(h wsapi.Host) (hostMark, bool) {
	var m hostMark
	if !strings.HasPrefix(h.Descriptors.Comment, `{"uuid":`) || json.Unmarshal([]byte(h.Descriptors.Comment), &m) != nil {
		return m, false
	}
	return m, m.UUID != ""
}

// hostCache remembers what a provider knows of the hosts of an array. Nothing
// depends on it but the number of calls, and the secrets of CHAP, which clients
// send with each publish.
type hostCache struct {
	mu     sync.Mutex
	name   map[hostKey]string  // the array's host
	owner  map[string]string   // array's host -> uuid
	told   map[string]hostBody // uuid -> what the client said last
	secret map[string]string   // array's host -> CHAP user and secret, as set last
}

type hostKey struct{ uuid, protocol string }

func (h *hostCache) know(uuid, protocol, name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.name == nil {
		h.name, h.owner = map[hostKey]string{}, map[string]string{}
	}
	h.name[hostKey{uuid, protocol}], h.owner[name] = name, uuid
}

func (h *hostCache) forget(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for k, n := range h.name {
		if n == name {
			delete(h.name, k)
		}
	}
	delete(h.owner, name)
	delete(h.secret, name)
}

func (h *hostCache) nameOf(uuid, protocol string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.name[hostKey{uuid, protocol}]
}

func (h *hostCache) ownerOf(name string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.owner[name]
}

// own notes whose a host is.
func (h *hostCache) own(name, uuid string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.owner == nil {
		h.name, h.owner = map[hostKey]string{}, map[string]string{}
	}
	h.owner[name] = uuid
}

// namesOf are the hosts that are known to be a node's.
func (h *hostCache) namesOf(uuid string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for n, u := range h.owner {
		if u == uuid {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

func (h *hostCache) tell(b hostBody) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.told == nil {
		h.told = map[string]hostBody{}
	}
	h.told[b.UUID] = b
}

func (h *hostCache) toldOf(uuid string) (hostBody, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b, ok := h.told[uuid]
	return b, ok
}

// secretSet says whether a host has the secret already, and notes that it has.
func (h *hostCache) secretIs(name, is string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.secret[name] == is
}

func (h *hostCache) setSecret(name, is string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.secret == nil {
		h.secret = map[string]string{}
	}
	h.secret[name] = is
}

// uuidOf reads a host_uuid: a uuid, or (the driver without Kubernetes) the
// whole JSON of the node object.
func uuidOf(v string) string {
	var n struct{ UUID string }
	if strings.HasPrefix(strings.TrimSpace(v), "{") && json.Unmarshal([]byte(v), &n) == nil && n.UUID != "" {
		return n.UUID
	}
	return v
}

// nodeName is what the ledger calls the node of a host_uuid.
func (s *Server) nodeName(v string) string {
	var n struct{ Name string }
	if json.Unmarshal([]byte(v), &n) == nil && n.Name != "" {
		return n.Name
	}
	uuid := uuidOf(v)
	for _, b := range s.arrays {
		if t, ok := b.hosts.toldOf(uuid); ok && t.Name != "" {
			return t.Name
		}
	}
	return uuid
}

// protocols of hosts on the array, with what their names begin with since 3.0.0
// of HPE's provider.
var protocols = []struct{ name, prefix string }{{protoISCSI, "iqn-"}, {protoFC, "wwn-"}, {protoNVMe, "nqntcp-"}}

func prefixOf(protocol string) string {
	for _, p := range protocols {
		if p.name == protocol {
			return p.prefix
		}
	}
	return ""
}

// hostNames are those that the array's host of a node may have: the node's name
// without its domain, cut to what fits.
func hostNames(protocol string, b hostBody) []string {
	node, _, _ := strings.Cut(b.Name, ".")
	if node == "" {
		node = b.UUID
	}
	prefix := prefixOf(protocol)
	first := legal(prefix + node)
	first = first[:min(len(first), maxName)]
	return []string{first, prefix + short(protocol, b.UUID, maxName-len(prefix))}
}

// initiators of a host, of one protocol, as the array spells them.
func (b hostBody) initiators(protocol string) []string {
	var out []string
	switch protocol {
	case protoFC:
		for _, w := range b.WWPNs {
			w = strings.ToUpper(strings.ReplaceAll(strings.TrimPrefix(w, "0x"), ":", ""))
			out = append(out, w)
		}
	case protoISCSI:
		for _, n := range b.IQNs {
			out = append(out, strings.ToLower(n)) // RFC 3722: names compare without case
		}
	default:
		out = slices.Clone(b.NQNs)
	}
	out = slices.DeleteFunc(out, func(n string) bool { return n == "" })
	slices.Sort(out)
	return slices.Compact(out)
}

func pathsOf(protocol string, h wsapi.Host) []string {
	var out []string
	switch protocol {
	case protoFC:
		for _, p := range h.FCPaths {
			out = append(out, strings.ToUpper(p.WWN))
		}
	case protoISCSI:
		for _, p := range h.ISCSIPaths {
			out = append(out, strings.ToLower(p.Name))
		}
	default:
		for _, p := range h.NVMePaths {
			out = append(out, p.NQN)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// check refuses what is no host. Unverified: that the real provider looks at
// initiators before it asks the array.
func (b hostBody) check() error {
	if b.UUID == "" {
		return refuse(http.StatusBadRequest, "uuid is required")
	}
	if b.Name == "" {
		return refuse(http.StatusBadRequest, "name is required")
	}
	for _, x := range []struct {
		member, allowed string
		names           []string
		fits            func(string) bool
	}{
		{"iqns", "allowed are names as in RFC 3720: iqn.yyyy-mm.…, eui.… and naa.…", b.IQNs, isISCSIName},
		{"wwpns", "allowed are 16 hex digits", b.WWPNs, isWWPN},
		{"nqns", "allowed is what begins with nqn.", b.NQNs, func(n string) bool { return strings.HasPrefix(n, "nqn.") && len(n) <= maxNQN }},
	} {
		for _, n := range x.names {
			if n != "" && !x.fits(n) {
				return wrong(x.member, n, x.allowed)
			}
		}
	}
	return nil
}

// maxNQN is how long the name of an NVMe subsystem or host may be, in bytes
// (NVMe base specification), maxISCSIName that of an iSCSI node (RFC 3720).
const (
	maxNQN       = 223
	maxISCSIName = 223
)

// isISCSIName looks at the kind of a name and its letters: what array and
// targets compare without case is one name.
func isISCSIName(n string) bool {
	n = strings.ToLower(n)
	kind, rest, dot := strings.Cut(n, ".")
	if !dot || rest == "" || len(n) > maxISCSIName || kind != "iqn" && kind != "eui" && kind != "naa" {
		return false
	}
	return !strings.ContainsFunc(rest, func(r rune) bool { // RFC 3722: letters, digits, '-', '.' and ':'
		return r < 0x80 && r != '-' && r != '.' && r != ':' && (r < '0' || r > '9') && (r < 'a' || r > 'z')
	})
}

// isWWPN takes a world wide port name with and without 0x and colons.
func isWWPN(n string) bool {
	n = strings.ReplaceAll(strings.TrimPrefix(strings.ToLower(n), "0x"), ":", "")
	return len(n) == 16 && strings.Trim(n, "0123456789abcdef") == ""
}

// putHost makes or changes the host of a node. Clients say it before each
// publish.
func (s *Server) putHost(c *call) (reply, error) {
	var b hostBody
	if err := decode(c.body, &b); err != nil {
		return reply{}, err
	}
	if err := b.check(); err != nil {
		return reply{}, err
	}
	wanted := []string{b.AccessProtocol}
	switch b.AccessProtocol {
	case protoISCSI, protoFC, protoNVMe:
		if len(b.initiators(b.AccessProtocol)) == 0 {
			return reply{}, refuse(http.StatusBadRequest, "host %s has no initiators for access_protocol %s", clip(b.UUID), b.AccessProtocol)
		}
	case protoFile:
		wanted = nil
	case "": // all that the node has
		wanted = nil
		for _, p := range protocols {
			if len(b.initiators(p.name)) > 0 {
				wanted = append(wanted, p.name)
			}
		}
	default:
		return reply{}, wrong("access_protocol", b.AccessProtocol, "allowed are iscsi, fc, nvmetcp and nfs")
	}
	for _, p := range wanted {
		if _, err := s.upsert(c.ctx, c.on, c.array, p, b); err != nil {
			return reply{}, err
		}
	}
	c.on.hosts.tell(b)
	b.ID = b.UUID
	b.CHAPUser, b.CHAPPassword = "", ""
	for _, l := range []*[]string{&b.IQNs, &b.WWPNs, &b.NQNs, &b.Networks} {
		if *l == nil {
			*l = []string{}
		}
	}
	return reply{body: b}, nil
}

// upsert makes the host of a node for a protocol what the node says, and
// returns its name on the array.
func (s *Server) upsert(ctx context.Context, on *backend, a *wsapi.Client, protocol string, b hostBody) (string, error) {
	leave, err := s.locks.Enter(ctx, on.Name+"/host/"+b.UUID)
	if err != nil {
		return "", refuse(http.StatusInternalServerError, "waiting for host %s: %v", clip(b.UUID), err)
	}
	defer leave()
	doing := "updating host " + clip(b.Name)
	h, err := s.hostOf(ctx, on, a, protocol, b)
	if err != nil {
		return "", failed(doing, err)
	}
	want := b.initiators(protocol)
	if h == nil {
		if h, err = s.createHost(ctx, a, protocol, b); err != nil {
			return "", failed(doing, err)
		}
	}
	on.hosts.know(b.UUID, protocol, h.Name)
	has := pathsOf(protocol, *h)
	var add, remove []string
	for _, n := range want {
		if !slices.Contains(has, n) {
			add = append(add, n)
		}
	}
	for _, n := range has {
		if !slices.Contains(want, n) {
			remove = append(remove, n)
		}
	}
	if err := changePaths(ctx, a, h.Name, protocol, wsapi.AddPaths, add); err != nil {
		return "", failed(doing, err)
	}
	// One that is in use stays: the node is still there with it.
	if err := changePaths(ctx, a, h.Name, protocol, wsapi.RemovePaths, remove); err != nil && !wsapi.Is(err, wsapi.CodeExported) {
		return "", failed(doing, err)
	}
	if protocol == protoISCSI && b.CHAPUser != "" {
		is := b.CHAPUser + "\x00" + b.CHAPPassword
		if h.CHAPName != b.CHAPUser || !on.hosts.secretIs(h.Name, is) {
			if err := a.SetCHAP(ctx, h.Name, b.CHAPUser, b.CHAPPassword); err != nil {
				return "", failed("setting CHAP of host "+clip(b.Name), err)
			}
			on.hosts.setSecret(h.Name, is)
		}
	}
	return h.Name, nil
}

func changePaths(ctx context.Context, a *wsapi.Client, host, protocol string, op int, names []string) error {
	if len(names) == 0 {
		return nil
	}
	ch := wsapi.HostChange{PathOperation: op}
	switch protocol {
	case protoFC:
		ch.FCWWNs = names
	case protoISCSI:
		ch.ISCSINames = names
	default: // one at a time
		for _, n := range names {
			ch.NQN = n
			if err := a.ModifyHost(ctx, host, ch); err != nil {
				return err
			}
		}
		return nil
	}
	return a.ModifyHost(ctx, host, ch)
}

// hostOf finds the array's host of a node: where it was found last, by its
// name, or by its initiators. A host without our mark that has them was made by
// hand, as for Active Peer Persistence, and is taken. It is nil where there is
// none.
func (s *Server) hostOf(ctx context.Context, on *backend, a *wsapi.Client, protocol string, b hostBody) (*wsapi.Host, error) {
	all := hostNames(protocol, b)
	if n := on.hosts.nameOf(b.UUID, protocol); n != "" {
		all = append([]string{n}, slices.DeleteFunc(all, func(m string) bool { return m == n })...)
	}
	for _, n := range all {
		h, err := a.Host(ctx, n)
		if wsapi.NotFound(err) {
			on.hosts.forget(n)
			continue
		}
		if err != nil {
			return nil, err
		}
		if m, ok := markOf(h); ok && m.UUID == b.UUID {
			return &h, nil
		}
	}
	// Unverified: that hosts made by hand are taken.
	with, err := hostsWith(ctx, a, protocol, b.initiators(protocol))
	if err != nil {
		return nil, err
	}
	for _, h := range with {
		m, ok := markOf(h)
		if ok && m.UUID == b.UUID {
			return &h, nil
		}
		if !ok && len(with) == 1 {
			d := h.Descriptors
			d.Comment = ascii(hostMark{b.UUID, b.Name})
			if err := a.ModifyHost(ctx, h.Name, wsapi.HostChange{Descriptors: &d}); err != nil {
				return nil, err
			}
			return &h, nil
		}
	}
	return nil, nil
}

func hostsWith(ctx context.Context, a *wsapi.Client, protocol string, names []string) ([]wsapi.Host, error) {
	switch protocol {
	case protoFC:
		return a.HostsWith(ctx, names, nil, nil)
	case protoISCSI:
		return a.HostsWith(ctx, nil, names, nil)
	}
	return a.HostsWith(ctx, nil, nil, names)
}

// createHost makes one, with its first initiator where the protocol takes one
// at a time. An initiator of another host is refused by the array.
func (s *Server) createHost(ctx context.Context, a *wsapi.Client, protocol string, b hostBody) (*wsapi.Host, error) {
	n := wsapi.NewHost{Domain: b.VirtualDomain, Descriptors: &wsapi.Descriptors{OS: "Linux", Comment: ascii(hostMark{b.UUID, b.Name})}}
	names := b.initiators(protocol)
	switch protocol {
	case protoFC:
		n.FCWWNs = names
	case protoISCSI:
		n.ISCSINames = names
	default:
		n.NQN, n.TransportType = names[0], 2
	}
	var err error
	for _, n.Name = range hostNames(protocol, b) {
		if err = a.CreateHost(ctx, n); err == nil {
			break
		}
		if !wsapi.Is(err, wsapi.CodeHostThere) {
			return nil, err
		}
		// Another node's, or ours, made by a call whose answer was lost.
		h, gerr := a.Host(ctx, n.Name)
		if gerr != nil {
			return nil, gerr
		}
		if m, ok := markOf(h); ok && m.UUID == b.UUID {
			return &h, nil
		}
	}
	if err != nil {
		return nil, err
	}
	h, err := a.Host(ctx, n.Name)
	return &h, err
}

// listHosts shows the nodes that have a host on the array.
func (s *Server) listHosts(c *call) (reply, error) {
	all, err := c.array.Hosts(c.ctx)
	if err != nil {
		return reply{}, failed("listing hosts", err)
	}
	out := []*hostBody{}
	by := map[string]*hostBody{}
	for _, h := range all {
		m, ok := markOf(h)
		if !ok {
			continue
		}
		b := by[m.UUID]
		if b == nil {
			b = &hostBody{ID: m.UUID, UUID: m.UUID, Name: m.Name, IQNs: []string{}, WWPNs: []string{}, NQNs: []string{}, Networks: []string{}}
			by[m.UUID] = b
			out = append(out, b)
		}
		b.IQNs = append(b.IQNs, pathsOf(protoISCSI, h)...)
		b.WWPNs = append(b.WWPNs, pathsOf(protoFC, h)...)
		b.NQNs = append(b.NQNs, pathsOf(protoNVMe, h)...)
	}
	return reply{body: out}, nil
}

// deleteHost drops the hosts of a node. One that is not there is gone.
func (s *Server) deleteHost(c *call) (reply, error) {
	uuid := c.vars["id"]
	if uuid == "" {
		uuid = c.query["uuid"]
	}
	if uuid = uuidOf(uuid); uuid == "" {
		return reply{}, refuse(http.StatusBadRequest, "uuid is required")
	}
	leave, err := s.enter(c, "host", uuid)
	if err != nil {
		return reply{}, err
	}
	defer leave()
	all, err := c.array.Hosts(c.ctx)
	if err != nil {
		return reply{}, failed("listing hosts", err)
	}
	for _, h := range all {
		if m, ok := markOf(h); !ok || m.UUID != uuid {
			continue
		}
		if err := c.array.DeleteHost(c.ctx, h.Name); err != nil && !wsapi.NotFound(err) {
			return reply{}, failed("deleting host "+h.Name, err)
		}
		c.on.hosts.forget(h.Name)
	}
	return reply{}, nil
}
