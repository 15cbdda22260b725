package wsapi

import (
	"net/http"
	"strings"

	"github.com/csilab/csilab/sim/array"
)

var hostRoutes = []route{
	get("hosts", (*Server).listHosts),
	get("hosts/{name}", (*Server).getHost),
	change(http.MethodPost, "hosts", (*Server).createHost),
	change(http.MethodPut, "hosts/{name}", (*Server).changeHost),
	change(http.MethodDelete, "hosts/{name}", (*Server).deleteHost),
}

// hostPath is an initiator of a host, at a port where it is logged in.
type hostPath struct {
	WWN     string         `json:"wwn,omitempty"`
	Name    string         `json:"name,omitempty"`
	NQN     string         `json:"NQN,omitempty"` // as HPE's python tools read it
	PortPos *array.PortPos `json:"portPos,omitempty"`
	Speed   int            `json:"hostSpeed"`
}

// paths are those of a host of one protocol: one for each port at which an
// initiator is logged in, or one without a port.
func (s *Server) paths(proto array.Protocol, names []string) []hostPath {
	var out []hostPath
	for _, n := range names {
		p := hostPath{}
		switch proto {
		case array.FC:
			p.WWN = n
		case array.ISCSI:
			p.Name = n
		default:
			p.NQN = n
		}
		at := s.a.LoggedIn(array.Path{Protocol: proto, Name: n})
		if len(at) == 0 {
			out = append(out, p)
		}
		for i := range at {
			q := p
			q.PortPos = &at[i]
			out = append(out, q)
		}
	}
	return out
}

func (s *Server) hostOut(c *call, h array.Host) map[string]any {
	out := map[string]any{"id": h.ID, "name": h.Name, "persona": h.Persona, "links": c.link("hosts", h.Name),
		"FCPaths": s.pathsOrNone(array.FC, h.FCWWNs), "iSCSIPaths": s.pathsOrNone(array.ISCSI, h.ISCSINames),
		"initiatorChapEnabled": h.CHAPName != "", "targetChapEnabled": h.TargetCHAPName != ""}
	if len(h.NQNs) > 0 {
		out["NVMETCPPaths"] = s.paths(array.NVMe, h.NQNs)
	}
	if h.Domain != "" {
		out["domain"] = h.Domain
	}
	if h.CHAPName != "" {
		out["initiatorChapName"] = h.CHAPName
	}
	if h.TargetCHAPName != "" {
		out["targetChapName"] = h.TargetCHAPName
	}
	if h.Descriptors != (array.Descriptors{}) {
		out["descriptors"] = h.Descriptors
	}
	return out
}

func (s *Server) pathsOrNone(p array.Protocol, names []string) []hostPath {
	if out := s.paths(p, names); out != nil {
		return out
	}
	return []hostPath{}
}

func (s *Server) listHosts(c *call) (reply, error) {
	q, err := c.ask("name", "FCPaths[wwn]", "iSCSIPaths[name]", "NVMETCPPaths[nqn]", "NVMETCPPaths[NQN]")
	if err != nil {
		return reply{}, err
	}
	var out []map[string]any
	for _, h := range s.a.Hosts() {
		has := func(names []string, one string) bool {
			for _, n := range names {
				if strings.EqualFold(n, one) {
					return true
				}
			}
			return false
		}
		if q.holds(func(t term) bool {
			switch t.list {
			case "FCPaths":
				return has(h.FCWWNs, strings.ReplaceAll(t.value, ":", ""))
			case "iSCSIPaths":
				return has(h.ISCSINames, t.value)
			case "NVMETCPPaths":
				return has(h.NQNs, t.value)
			}
			return h.Name == t.value
		}) {
			out = append(out, s.hostOut(c, h))
		}
	}
	return reply{body: list(out)}, nil
}

func (s *Server) getHost(c *call) (reply, error) {
	h, err := s.a.Host(c.vars["name"])
	if err != nil {
		return reply{}, err
	}
	return reply{body: s.hostOut(c, h)}, nil
}

type descriptors struct {
	Location *string `json:"location"`
	IPAddr   *string `json:"IPAddr"`
	OS       *string `json:"os"`
	Model    *string `json:"model"`
	Contact  *string `json:"contact"`
	Comment  *string `json:"comment"`
}

func (d *descriptors) out() (o array.Descriptors) {
	if d != nil {
		o = array.Descriptors{Location: given(d.Location), IPAddr: given(d.IPAddr), OS: given(d.OS), Model: given(d.Model), Contact: given(d.Contact), Comment: given(d.Comment)}
	}
	return o
}

// nqns reads the one NQN of a host; transportType 2 is TCP, the only one.
func nqns(nqn *string, transport *int64) ([]string, error) {
	if transport != nil && *transport != 2 {
		return nil, refuse(array.BadEnum, "transportType", "invalid input: allowed is 2")
	}
	if nqn == nil {
		if transport != nil {
			return nil, required(false, "NQN")
		}
		return nil, nil
	}
	return []string{*nqn}, nil
}

func (s *Server) createHost(c *call) (reply, error) {
	var in struct {
		Name        *string      `json:"name"`
		Domain      *string      `json:"domain"`
		Persona     *int64       `json:"persona"`
		FCWWNs      []string     `json:"FCWWNs"`
		ISCSINames  []string     `json:"iSCSINames"`
		NQN         *string      `json:"NQN"`
		Transport   *int64       `json:"transportType"`
		TearDown    *bool        `json:"forceTearDown"` // of exports of a lower priority; there are none
		Descriptors *descriptors `json:"descriptors"`
	}
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	if err := required(in.Name != nil, "name"); err != nil {
		return reply{}, err
	}
	n, err := nqns(in.NQN, in.Transport)
	if err != nil {
		return reply{}, err
	}
	if in.Persona != nil && *in.Persona == 0 { // 0 is the core's default
		return reply{}, refuse(array.BadEnum, "persona", "invalid input: allowed are 1 to 11")
	}
	if _, err := s.a.CreateHost(c.now, array.HostSpec{Name: *in.Name, Domain: given(in.Domain), Persona: array.Persona(given(in.Persona)),
		FCWWNs: in.FCWWNs, ISCSINames: in.ISCSINames, NQNs: n, Descriptors: in.Descriptors.out()}); err != nil {
		return reply{}, err
	}
	return created("hosts", *in.Name), nil
}

func (s *Server) changeHost(c *call) (reply, error) {
	var in struct {
		NewName     *string      `json:"newName"`
		Persona     *int64       `json:"persona"`
		Descriptors *descriptors `json:"descriptors"`

		PathOp     *int64   `json:"pathOperation"`
		FCWWNs     []string `json:"FCWWNs"`
		ISCSINames []string `json:"iSCSINames"`
		NQN        *string  `json:"NQN"`
		Transport  *int64   `json:"transportType"`
		Force      *bool    `json:"forcePathRemoval"`

		CHAPOp     *int64  `json:"chapOperation"`
		CHAPMode   *int64  `json:"chapOperationMode"`
		CHAPName   *string `json:"chapName"`
		CHAPSecret *string `json:"chapSecret"`
		CHAPHex    *bool   `json:"chapSecretHex"`
		TargetOnly *bool   `json:"chapRemoveTargetOnly"`
	}
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	n, err := nqns(in.NQN, in.Transport)
	if err != nil {
		return reply{}, err
	}
	ch := array.HostChange{NewName: in.NewName, FCWWNs: in.FCWWNs, ISCSINames: in.ISCSINames, NQNs: n, Force: given(in.Force),
		PathOp: array.EditOp(given(in.PathOp)), CHAPOp: array.EditOp(given(in.CHAPOp)), CHAPMode: array.CHAPMode(given(in.CHAPMode)),
		CHAPName: given(in.CHAPName), CHAPSecret: given(in.CHAPSecret), CHAPHex: given(in.CHAPHex), TargetOnly: given(in.TargetOnly)}
	for _, x := range []struct {
		n    *int64
		name string
	}{{in.PathOp, "pathOperation"}, {in.CHAPOp, "chapOperation"}, {in.CHAPMode, "chapOperationMode"}} {
		if x.n != nil && *x.n != 1 && *x.n != 2 { // 0 would be none to the core
			return reply{}, refuse(array.BadEnum, x.name, "invalid input: allowed are 1 and 2")
		}
	}
	if in.Persona != nil {
		p := array.Persona(*in.Persona)
		ch.Persona = &p
	}
	if in.Descriptors != nil { // those that are not given stay
		h, err := s.a.Host(c.vars["name"])
		if err != nil {
			return reply{}, err
		}
		d := h.Descriptors
		for _, x := range []struct {
			from *string
			to   *string
		}{{in.Descriptors.Location, &d.Location}, {in.Descriptors.IPAddr, &d.IPAddr}, {in.Descriptors.OS, &d.OS},
			{in.Descriptors.Model, &d.Model}, {in.Descriptors.Contact, &d.Contact}, {in.Descriptors.Comment, &d.Comment}} {
			if x.from != nil {
				*x.to = *x.from
			}
		}
		ch.Descriptors = &d
	}
	_, err = s.a.ModifyHost(c.now, c.vars["name"], ch)
	return reply{}, err
}

func (s *Server) deleteHost(c *call) (reply, error) {
	return reply{}, s.a.DeleteHost(c.now, c.vars["name"])
}
