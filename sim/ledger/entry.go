package ledger

import (
	"fmt"
	"strings"
	"time"
)

// Hop names a boundary between two components.
type Hop string

// The hops of a lab.
const (
	CSI          Hop = "csi"          // a CO or kubelet calls the driver
	VCenter      Hop = "vcenter"      // the driver calls the vCenter (SOAP and REST)
	Host         Hop = "host"         // someone acts on a node's operating system
	Registration Hop = "registration" // the kubelet calls a plugin registrar
	Kube         Hop = "kube"         // a component calls the API server
	CSP          Hop = "csp"          // the driver calls the Container Storage Provider
	WSAPI        Hop = "wsapi"        // a client calls an array
)

// Hops lists them, from the user's side to the storage.
func Hops() []Hop { return []Hop{Kube, Registration, CSI, VCenter, CSP, WSAPI, Host} }

// Outcome says what became of a call.
type Outcome string

// The outcomes.
const (
	Pending      Outcome = "pending"       // has not ended yet
	OK           Outcome = "ok"            // done and the caller knows
	Failed       Outcome = "failed"        // the callee refused
	Refused      Outcome = "refused"       // a fault stopped it before it had an effect
	MaybeApplied Outcome = "maybe-applied" // done or not: the caller can't know (reply lost or replaced, other victim of a closed connection)
)

// Outcomes lists them.
func Outcomes() []Outcome { return []Outcome{Pending, OK, Failed, Refused, MaybeApplied} }

// Entry is one call.
type Entry struct {
	Seq       uint64        `json:"seq"`
	Start     time.Time     `json:"start"`
	Duration  time.Duration `json:"duration"` // in ns
	Hop       Hop           `json:"hop"`
	Op        string        `json:"op"`               // method as its protocol spells it, e.g. ControllerPublishVolume, CnsAttachVolume
	Component string        `json:"component"`        // who called, e.g. csi-attacher, kubelet@node-1, driver-controller
	Node      string        `json:"node,omitempty"`   // node name or node id that the call is about
	Volume    string        `json:"volume,omitempty"` // volume id (or name, before there is an id)
	Snapshot  string        `json:"snapshot,omitempty"`
	Request   string        `json:"request,omitempty"` // digest, no secrets
	Outcome   Outcome       `json:"outcome"`
	Code      string        `json:"code,omitempty"` // the protocol's own code or fault type
	Error     string        `json:"error,omitempty"`
	Fault     string        `json:"fault,omitempty"` // name of the rule that acted on it
	Cause     uint64        `json:"cause,omitempty"` // seq of the call that this one was made for, where known
}

// Subject returns volume, snapshot or node, whichever is known first.
func (e Entry) Subject() string {
	for _, s := range []string{e.Volume, e.Snapshot, e.Node} {
		if s != "" {
			return s
		}
	}
	return ""
}

func (e Entry) String() string {
	s := fmt.Sprintf("#%d %s/%s by %s", e.Seq, e.Hop, e.Op, e.Component)
	if v := e.Subject(); v != "" {
		s += " " + v
	}
	if e.Cause != 0 {
		s += fmt.Sprintf(" for #%d", e.Cause)
	}
	s += " " + string(e.Outcome)
	if e.Code != "" {
		s += " " + e.Code
	}
	if e.Fault != "" {
		s += " [" + e.Fault + "]"
	}
	if e.Error != "" {
		s += ": " + e.Error
	}
	return s
}

// Text renders entries a line each.
func Text(es []Entry) string {
	var b strings.Builder
	for _, e := range es {
		b.WriteString(e.String())
		b.WriteByte('\n')
	}
	return b.String()
}
