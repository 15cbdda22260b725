package fault

import (
	"fmt"
	"slices"

	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/nearest"
)

// ErrorSpec is an error of a protocol by name.
type ErrorSpec struct {
	Code    string // in the protocol's own words: NotFound, ENOSPC, 503, …
	Message string // "": what the real system says with it, where known
	Status  int    // of HTTP, where the protocol has a code beside it; 0: that of the code
	Body    string // what an HTTP answer holds: "" is a good one; see Protocol.Bodies
}

// Protocol is how errors of a hop are made. The package of the protocol
// registers it.
type Protocol struct {
	// Doc says what codes are, in a sentence.
	Doc string
	// Codes that are known by name, for documentation and hints. Others may be
	// good too.
	Codes func() []string
	// Bodies that an answer may have.
	Bodies []string
	// Make makes the error. op is that of the call, "" for any. Errors are what is
	// wrong in the spec: a *ParamError names the parameter.
	Make func(op string, s ErrorSpec) (error, error)
	// Typical are codes that a sweep tries on an operation: those that the real
	// system gives there.
	Typical func(op string) []string
}

var protocols = map[ledger.Hop]Protocol{}

// RegisterErrors adds the errors of a hop, at the start of the program.
func RegisterErrors(p Protocol, hops ...ledger.Hop) {
	for _, h := range hops {
		if _, twice := protocols[h]; twice {
			panic(fmt.Sprintf("fault: errors of hop %s are registered twice", h))
		}
		protocols[h] = p
	}
}

// ProtocolOf returns the errors of a hop.
func ProtocolOf(h ledger.Hop) (Protocol, bool) {
	p, ok := protocols[h]
	return p, ok
}

// ErrorHops lists the hops whose errors are known.
func ErrorHops() []ledger.Hop {
	var out []ledger.Hop
	for _, h := range Hops {
		if _, ok := protocols[h]; ok {
			out = append(out, h)
		}
	}
	return out
}

// NewError makes an error of a hop by name. Errors say what is wrong in the
// spec.
func NewError(h ledger.Hop, op string, s ErrorSpec) (error, error) {
	p, ok := protocols[h]
	if !ok {
		return nil, fmt.Errorf("errors of hop %q are not known; name the hop: one of %s", h, hopList(ErrorHops()))
	}
	if s.Body != "" && !slices.Contains(p.Bodies, s.Body) {
		if len(p.Bodies) == 0 {
			return nil, Wrong("body", "errors of hop %s have none", h)
		}
		return nil, Wrong("body", "%q%s", s.Body, nearest.Name(s.Body, p.Bodies))
	}
	if s.Status != 0 && (s.Status < 400 || s.Status > 599) {
		return nil, Wrong("status", "%d, allowed are 400 to 599", s.Status)
	}
	return p.Make(op, s)
}
