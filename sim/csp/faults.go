package csp

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/nearest"
)

func init() {
	for _, r := range routes {
		fault.RegisterOps(ledger.CSP, r.method+" /"+r.pattern)
	}
	fault.RegisterErrors(fault.Protocol{
		Doc:    "a status of HTTP",
		Codes:  statuses,
		Bodies: []string{string(EmptyBody), string(HTMLBody), string(TruncatedBody), string(ListBody)},
		Make: func(_ string, s fault.ErrorSpec) (error, error) {
			if s.Status != 0 {
				return nil, fault.Wrong("status", "the code is the status")
			}
			n, err := strconv.Atoi(s.Code)
			if err != nil || n < 400 || n > 599 || http.StatusText(n) == "" {
				return nil, fault.Wrong("code", "%q is no status of an error%s", s.Code, nearest.Name(s.Code, statuses()))
			}
			text := s.Message
			if text == "" {
				text = strings.ToLower(http.StatusText(n))
			}
			return &Fault{Status: n, Message: text, Body: Body(s.Body)}, nil
		},
		// 404 and 409 would be lies about what is there.
		Typical: func(op string) []string {
			if strings.HasSuffix(op, " /tokens") {
				return []string{"500", "503"}
			}
			return []string{"500", "503", "401"}
		},
	}, ledger.CSP)
}

func statuses() (out []string) {
	for n := 400; n < 600; n++ {
		if http.StatusText(n) != "" {
			out = append(out, fmt.Sprint(n))
		}
	}
	return out
}
