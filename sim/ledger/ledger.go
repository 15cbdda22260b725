// Package ledger is the ordered record of every call on every hop of a lab.
//
// Tests assert on it, reports draw it, and the sweep derives its cells from it.
// An entry is written when a call starts and closed when it ends, so that a
// call that never returns is seen too. Entries never hold secrets: the faces
// hand over digests and subject ids, not requests.
package ledger

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
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

// Entry is one call.
type Entry struct {
	Seq       uint64        `json:"seq"`
	Start     time.Time     `json:"start"`
	Duration  time.Duration `json:"duration"`
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

// Ledger is safe for concurrent use. The zero value is ready.
type Ledger struct {
	mu      sync.Mutex
	entries []Entry
	sinks   []func(Entry)
}

// Begin writes a pending entry and returns its sequence number (1 is the first).
func (l *Ledger) Begin(e Entry) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.Seq = uint64(len(l.entries)) + 1
	e.Start = time.Now()
	e.Outcome = Pending
	l.entries = append(l.entries, e)
	return e.Seq
}

// End closes entry seq; f sets outcome, code, error and fault. An entry that
// is already closed stays as it is.
func (l *Ledger) End(seq uint64, f func(*Entry)) {
	l.mu.Lock()
	if seq == 0 || seq > uint64(len(l.entries)) {
		l.mu.Unlock()
		return
	}
	e := &l.entries[seq-1]
	if e.Outcome != Pending {
		l.mu.Unlock()
		return
	}
	f(e)
	e.Duration = time.Since(e.Start)
	done := *e
	sinks := l.sinks
	l.mu.Unlock()
	for _, s := range sinks {
		s(done)
	}
}

// Subscribe calls f with every entry that closes from now on.
func (l *Ledger) Subscribe(f func(Entry)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sinks = append(slices.Clone(l.sinks), f)
}

// Len is the number of entries.
func (l *Ledger) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.entries)
}

// Filter selects entries.
type Filter func(Entry) bool

// OnHop selects a hop and, where given, one of the operations.
func OnHop(h Hop, ops ...string) Filter {
	return func(e Entry) bool { return e.Hop == h && (len(ops) == 0 || slices.Contains(ops, e.Op)) }
}

// After selects what came after entry seq.
func After(seq uint64) Filter { return func(e Entry) bool { return e.Seq > seq } }

// About selects entries whose volume, snapshot or node is id.
func About(id string) Filter {
	return func(e Entry) bool { return e.Volume == id || e.Snapshot == id || e.Node == id }
}

// Entries returns a copy of the entries that pass all filters, in order.
func (l *Ledger) Entries(filters ...Filter) []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []Entry
next:
	for _, e := range l.entries {
		for _, f := range filters {
			if !f(e) {
				continue next
			}
		}
		out = append(out, e)
	}
	return out
}

// WriteJSON writes the entries as JSON lines.
func (l *Ledger) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	for _, e := range l.Entries() {
		if err := enc.Encode(e); err != nil {
			return err
		}
	}
	return nil
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
