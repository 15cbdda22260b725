package wsapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// Numbers by which a client tells refusals apart: of HPE's developer guides and
// its python client, and as OpenStack's driver reacts to them.
const (
	CodePassword      = 5
	CodeSession       = 6
	CodePermission    = 13
	CodeNoCPG         = 15
	CodeHostThere     = 16
	CodeNoHost        = 17
	CodeLUNThere      = 18
	CodeNoVLUN        = 19
	CodeVolumeThere   = 22
	CodeNoVolume      = 23
	CodeNoSpace       = 24
	CodeReadOnlyChild = 25
	CodeExported      = 26
	CodeCopying       = 29
	CodeChild         = 32
	CodeInUse         = 34
	CodeTooLong       = 57
	CodeIllegalChar   = 69
	CodePathThere     = 73
	CodeHostInSet     = 77
	CodePathTwice     = 98
	CodeNoQoS         = 100
	CodeSetThere      = 101
	CodeNoSet         = 102
	CodeQoSThere      = 114
	CodeOnlineCopy    = 151
	CodeNoKey         = 180
	CodeKeyThere      = 181
	CodeNoGroup       = 187
	CodeGroupStarted  = 215
	CodeGroupThere    = 237
	CodeBusy          = 270
)

// Error is a request that the array refused.
type Error struct {
	Status int // of HTTP
	Code   int // 0 where the answer had none
	Desc   string
	Ref    string // the member that is wrong
}

func (e *Error) Error() string {
	s := fmt.Sprintf("WSAPI %d", e.Status)
	if e.Code != 0 {
		s += fmt.Sprintf(" code %d", e.Code)
	}
	s += ": " + e.Desc
	if e.Ref != "" {
		s += " (" + e.Ref + ")"
	}
	return s
}

func parseError(status int, body []byte) *Error {
	var in struct {
		Code               int
		Desc, Message, Ref string
	}
	e := &Error{Status: status}
	if err := json.Unmarshal(body, &in); err != nil {
		e.Desc = http.StatusText(status)
		if t := strings.TrimSpace(string(body)); t != "" {
			e.Desc = clip(t)
		}
		return e
	}
	e.Code, e.Desc, e.Ref = in.Code, in.Desc, in.Ref
	if e.Desc == "" {
		e.Desc = in.Message
	}
	if e.Desc == "" {
		e.Desc = http.StatusText(status)
	}
	e.Desc = clip(e.Desc)
	return e
}

func clip(s string) string {
	if len(s) > 256 {
		return strings.ToValidUTF8(s[:256], "") + "…"
	}
	return s
}

// Is says whether the array refused with one of some numbers.
func Is(err error, codes ...int) bool {
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	for _, c := range codes {
		if e.Code == c {
			return true
		}
	}
	return false
}

// Lost says whether the session of a request is gone.
func Lost(err error) bool {
	var e *Error
	return errors.As(err, &e) && (e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden && e.Code == CodeSession)
}

// NotFound says whether what a request is about is not there.
func NotFound(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Status == http.StatusNotFound
}
