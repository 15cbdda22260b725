package csp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/csilab/csilab/sim/csp/wsapi"
)

// Body is what a Fault is answered with.
type Body string

// The bodies of a Fault.
const (
	GoodBody      Body = ""          // {"errors":[{code,message}]}
	EmptyBody     Body = "empty"     // none
	HTMLBody      Body = "html"      // a page, as of a proxy
	TruncatedBody Body = "truncated" // JSON that ends too early
	ListBody      Body = "list"      // [], which the driver takes for an error where it asks by name
)

// Fault is an error that a rule of the fault plan gives to the hop csp: it is
// answered with the status and a body of some kind. One with Edit, in the phase
// after, answers as if nothing were wrong, with what Edit makes of the reply, or of
// each object of a list: a lun_id of -1, a serial number in upper case.
type Fault struct {
	Status  int
	Code    string // default: the reason phrase of Status
	Message string
	Body    Body
	Edit    func(reply map[string]any)
}

func (f *Fault) Error() string { return fmt.Sprintf("csp: %d: %s", f.Status, f.Message) }

// failure is a request that is answered with an error.
type failure struct {
	status  int
	message string
	array   *wsapi.Error // what the array said, where it is that
	away    bool         // the array did not answer
}

func (f *failure) Error() string { return fmt.Sprintf("csp: %d: %s", f.status, f.message) }

func (f *failure) Unwrap() error {
	if f.array == nil {
		return nil
	}
	return f.array
}

// asFailure finds a failure in an error.
func asFailure(err error, f **failure) bool { return errors.As(err, f) }

func refuse(status int, format string, args ...any) *failure {
	return &failure{status: status, message: fmt.Sprintf(format, args...)}
}

// wrong is a parameter that is not allowed.
func wrong(parameter, value, allowed string) *failure {
	return refuse(http.StatusBadRequest, "invalid parameter %s %q: %s", parameter, clip(value), allowed)
}

func clip(s string) string {
	if len(s) > 128 {
		return fmt.Sprintf("%.120q…", s[:120])
	}
	return s
}

// NoSpace is what the driver looks for in the answer to a snapshot that did not
// fit.
const NoSpace = "insufficient storage space"

// failed tells what an array's refusal is to the driver. What the array says
// with 503 is 500 here: clients drop the text of a 503, and the known provider
// does so (csi-driver#209).
//
// Unverified: most of the statuses; the driver's issues show 401, 404, 409 and
// 500.
func failed(doing string, err error) error {
	var f *failure
	if err == nil || errors.As(err, &f) {
		return err
	}
	var e *wsapi.Error
	if !errors.As(err, &e) {
		f := refuse(http.StatusInternalServerError, "%s: %v", doing, err)
		f.away = !errors.Is(err, context.Canceled)
		return f
	}
	status := http.StatusInternalServerError
	text := e.Error()
	switch {
	case wsapi.Lost(e), e.Code == wsapi.CodePassword:
		status = http.StatusUnauthorized
	case e.Code == wsapi.CodeNoSpace:
		text = NoSpace + ": " + text
	case e.Code == wsapi.CodePermission: // a 401 would make the driver log in for ever
	case e.Status == http.StatusForbidden: // a state that forbids it
		status = http.StatusConflict
	case e.Status == http.StatusNotFound && !isNamed(e): // 404 would say that what the request is about is gone
	case e.Status == http.StatusBadRequest, e.Status == http.StatusNotFound, e.Status == http.StatusConflict:
		status = e.Status
	case e.Status == http.StatusRequestEntityTooLarge, e.Status == http.StatusNotImplemented:
		status = http.StatusBadRequest
	}
	return &failure{status: status, message: doing + ": " + text, array: e}
}

// isNamed says whether what an array does not have is of a kind that requests name:
// a volume or its snapshot, a host, a volume group, a CPG.
func isNamed(e *wsapi.Error) bool {
	switch e.Code {
	case wsapi.CodeNoVolume, wsapi.CodeNoHost, wsapi.CodeNoSet, wsapi.CodeNoCPG:
		return true
	}
	return false
}

// inTheWay tells what an array's refusal is to who makes something: a state of
// the array that passes, such as a copy that runs, is 500, so that 409 means
// that what shall be made is there already.
func inTheWay(err error) error {
	var f *failure
	if errors.As(err, &f) && f.array != nil && (f.status == http.StatusConflict || f.array.Code == wsapi.CodeCopying) {
		return &failure{status: http.StatusInternalServerError, message: f.message, array: f.array}
	}
	return err
}

// reply of a request.
type reply struct {
	status int // 0: 200, or 204 without a body
	body   any
}

// answer is a reply in the form in which it is sent.
type answer struct {
	status int
	kind   string // Content-Type
	body   []byte
}

func errorBody(status int, code, message string) []byte {
	if code == "" {
		code = http.StatusText(status)
	}
	if code == "" {
		code = fmt.Sprint(status)
	}
	b, err := json.Marshal(map[string]any{"errors": []map[string]string{{"code": code, "message": message}}})
	if err != nil {
		panic(err) // strings can be marshalled
	}
	return b
}

func statusOr(status, or int) int {
	if status < 100 || status > 999 {
		return or
	}
	return status
}

// answerOf says what is sent. res is what the operation replied, also where a
// rule put err in its place.
func answerOf(res reply, err error) answer {
	var g *Fault
	if errors.As(err, &g) {
		if g.Edit != nil && res.body != nil {
			return answerOf(reply{statusOr(g.Status, res.status), edited(res.body, g.Edit)}, nil)
		}
		a := answer{status: statusOr(g.Status, http.StatusInternalServerError), kind: "application/json"}
		switch g.Body {
		case EmptyBody:
			a.kind = ""
		case ListBody:
			a.body = []byte("[]")
		case HTMLBody:
			a.kind, a.body = "text/html", []byte("<html><body><h1>"+http.StatusText(a.status)+"</h1></body></html>\n")
		case TruncatedBody:
			a.body = errorBody(a.status, g.Code, g.Message)
			a.body = a.body[:len(a.body)/2]
		default:
			a.body = errorBody(a.status, g.Code, g.Message)
		}
		return a
	}
	if err != nil {
		f := &failure{status: http.StatusInternalServerError, message: "internal error"}
		errors.As(err, &f)
		return answer{f.status, "application/json", errorBody(f.status, "", f.message)}
	}
	if res.body == nil {
		return answer{status: statusOr(res.status, http.StatusNoContent)}
	}
	b, err := json.Marshal(res.body)
	if err != nil {
		return answerOf(reply{}, err)
	}
	return answer{statusOr(res.status, http.StatusOK), "application/json", b}
}

// edited is a reply with its objects changed.
func edited(body any, edit func(map[string]any)) any {
	b, err := json.Marshal(body)
	if err != nil {
		return body
	}
	var list []map[string]any
	if json.Unmarshal(b, &list) == nil {
		for _, m := range list {
			edit(m)
		}
		return list
	}
	var m map[string]any
	if json.Unmarshal(b, &m) != nil {
		return body
	}
	edit(m)
	return m
}

// CodeOf is the code that the ledger shows for an error of this hop: the
// status, and the array's number where it was the array that refused.
func CodeOf(err error) string {
	var g *Fault
	if errors.As(err, &g) {
		return fmt.Sprint(g.Status)
	}
	var f *failure
	if !errors.As(err, &f) {
		return ""
	}
	if f.array != nil && f.array.Code != 0 {
		return fmt.Sprintf("%d/%d", f.status, f.array.Code)
	}
	return fmt.Sprint(f.status)
}
