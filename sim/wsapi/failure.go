package wsapi

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/csilab/csilab/sim/array"
)

// Failures of the API itself, of which the core knows nothing.
const (
	internal   = "INT_SERV_ERR"
	eof        = "INPUT_EOF"
	tooLong    = "INPUT_TOO_LONG"
	timeout    = "TIMEOUT"
	noResource = "URI_RES_NOT_FOUND"
	syntax     = "JSON_SYNTAX" // Unverified: its symbol
)

// api has their codes, and those that a rule may give but nothing here does.
// Source: the WSAPI developer's guide 1.2.
var api = map[string]Fault{
	internal:                           {Status: http.StatusInternalServerError, Code: 1, Desc: "internal server error"},
	"INV_SSL":                          {Status: http.StatusBadRequest, Code: 2, Desc: "invalid SSL"},
	eof:                                {Status: http.StatusBadRequest, Code: 3, Desc: "unexpected end of input"},
	tooLong:                            {Status: http.StatusRequestEntityTooLarge, Code: 4, Desc: "input is too long"},
	timeout:                            {Status: http.StatusRequestTimeout, Code: 7, Desc: "timeout"},
	"UNSUP_HTTP":                       {Status: http.StatusHTTPVersionNotSupported, Code: 8, Desc: "unsupported HTTP version"},
	noResource:                         {Status: http.StatusNotFound, Code: 11, Desc: "URI resource not found"},
	syntax:                             {Status: http.StatusBadRequest, Code: 60, Desc: "JSON syntax error"},
	"VV_VOLUME_ACCOUNTING_IN_PROGRESS": {Status: http.StatusConflict, Code: 90, Desc: "volume accounting is in progress"},
}

// failed is one of them.
func failed(symbol string) *failure {
	f := api[symbol]
	return &failure{status: f.Status, code: f.Code, desc: f.Desc, kind: symbol}
}

// broken is an internal server error with its cause.
func broken(cause error) *failure {
	f := failed(internal)
	f.desc, f.cause = f.desc+": "+cause.Error(), cause
	return f
}

// Fault is an error that a rule of the fault plan gives to the hop wsapi: it is
// answered with the status and {code, desc, ref}. With code 0 the body is
// {"message": Desc}, as from a gateway before the array. A rule may give an
// *array.Error as well.
type Fault struct {
	Status, Code int
	Desc, Ref    string
}

func (f *Fault) Error() string { return fmt.Sprintf("wsapi: %d %d: %s", f.Status, f.Code, f.Desc) }

// failure is a request that is answered with an error.
type failure struct {
	status, code int
	desc, ref    string
	kind         string // its symbol, for the ledger
	cause        error  // what went wrong inside
}

// Unwrap gives what went wrong inside, or nil.
func (f *failure) Unwrap() error { return f.cause }

func (f *failure) Error() string {
	s := fmt.Sprintf("wsapi: %d %d", f.status, f.code)
	if f.kind != "" {
		s += " " + f.kind
	}
	return s + ": " + f.desc
}

func refuse(k array.Kind, ref, desc string) *failure {
	w := k.Wire()
	return &failure{status: w.Status, code: w.Code, desc: desc, ref: ref, kind: string(k)}
}

// texts are what the array says with a kind, where a public source shows it;
// for all others the core's words are told. Clients go by the number.
var texts = map[array.Kind]string{
	array.UserOrPassword:    "invalid username or password",
	array.SessionKey:        "invalid session key",
	array.TooBusy:           "System is too busy. Please try again later",
	array.NonExistentVolume: "volume does not exist",
	array.ExistentVolume:    "volume already exists",
	array.NonExistentHost:   "host does not exist",
	array.ExistentHost:      "host already exists",
	array.NonExistentVLUN:   "VLUN does not exist",
	array.NonExistentSet:    "set does not exist",
	array.NonExistentCPG:    "CPG does not exist",
	array.ExistentPath:      "host WWN/iSCSI name already used by another host",
	array.ExistentLUN:       "LUN exists",
	array.PermissionDenied:  "permission denied",
}

// asFailure is how an error is told to the client.
func asFailure(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	var e *array.Error
	if errors.As(err, &e) {
		out := refuse(e.Kind, e.Field, texts[e.Kind])
		if e.Kind == array.SessionKey || e.Kind == array.UserOrPassword { // neither is about a member
			out.ref = ""
		}
		if out.desc == "" {
			out.desc = e.Reason
			if e.Holder != "" {
				out.desc += " (" + e.Holder + ")"
			}
		}
		return out
	}
	var g *Fault
	if errors.As(err, &g) {
		return &failure{status: g.Status, code: g.Code, desc: g.Desc, ref: g.Ref}
	}
	return failed(internal)
}

// CodeOf is the code that the ledger shows for an error of this hop: the symbol
// of the array where it has one, else its number, or "".
func CodeOf(err error) string {
	var f *failure
	var e *array.Error
	var g *Fault
	switch {
	case errors.As(err, &e):
		return string(e.Kind)
	case errors.As(err, &f) && f.kind != "":
		return f.kind
	case errors.As(err, &f):
		return fmt.Sprint(f.code)
	case errors.As(err, &g):
		return fmt.Sprint(g.Code)
	}
	return ""
}

// body is what the client reads.
func (f *failure) body() any {
	if f.code == 0 {
		return map[string]string{"message": f.desc}
	}
	b := map[string]any{"code": f.code, "desc": f.desc}
	if f.ref != "" {
		b["ref"] = f.ref
	}
	return b
}
