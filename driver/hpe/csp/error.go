package csp

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/csilab/csilab/driver/broken"
)

// Error is a call that failed.
type Error struct {
	// Op is method and path: "PUT /volumes/v/actions/publish".
	Op string
	// Status is that of the reply, 0 when there was none.
	Status int
	// Code and Message are those of the reply's body, where it has them.
	Code, Message string
	// Unknown: the call changes something, and whether it did isn't known: an
	// attempt had no reply, or one that says nothing.
	Unknown bool
	// Login: it is the login that failed, Op is the call that needed it.
	Login bool
	// Err is the cause where there was no reply or it couldn't be read.
	Err error
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("CSP: ")
	if e.Login {
		b.WriteString("login for ")
	}
	b.WriteString(e.Op)
	if e.Status != 0 {
		fmt.Fprintf(&b, ": %d %s", e.Status, http.StatusText(e.Status))
	}
	if e.Code != "" && !strings.EqualFold(e.Code, http.StatusText(e.Status)) {
		fmt.Fprintf(&b, " (%s)", e.Code)
	}
	if e.Message != "" {
		b.WriteString(": " + e.Message)
	}
	switch {
	case e.Err == nil:
	case broken.Connection(e.Err) && !unsent(e.Err):
		b.WriteString(": " + broken.Text)
	default:
		b.WriteString(": " + e.Err.Error())
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// StatusOf returns the status of the reply that err is about, 0 for none.
func StatusOf(err error) int {
	if e, ok := errors.AsType[*Error](err); ok && !e.Login {
		return e.Status
	}
	return 0
}

// Unknown reports a failure after which what was asked for may have been done.
func Unknown(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Unknown
}

// explain reads the body of a refusal: {"errors":[{code,message}]} or a bare
// {code,message}. Of anything else, such as a proxy's page, it keeps the
// beginning.
func explain(body []byte) (code, message string) {
	var e struct {
		Errors        []struct{ Code, Message string }
		Code, Message string
	}
	if json.Unmarshal(body, &e) == nil {
		var texts []string
		for _, x := range e.Errors {
			if code == "" {
				code = x.Code
			}
			if x.Message != "" {
				texts = append(texts, x.Message)
			}
		}
		if code == "" {
			code = e.Code
		}
		if e.Message != "" {
			texts = append(texts, e.Message)
		}
		if code != "" || len(texts) > 0 {
			return code, strings.Join(texts, "; ")
		}
	}
	const keep = 200
	s := strings.Join(strings.Fields(strings.ToValidUTF8(string(body), "?")), " ")
	if len(s) > keep {
		cut := keep
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "…"
	}
	return "", s
}
