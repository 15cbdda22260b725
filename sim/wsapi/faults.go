package wsapi

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/nearest"
)

// httpPrefix begins the code of an answer that is not the array's: HTTP503.
const httpPrefix = "HTTP"

func init() {
	fault.RegisterOps(ledger.WSAPI, "GET /api")
	fault.RegisterErrors(fault.Protocol{
		Doc:   "a symbol of the WSAPI or its number, or HTTP and a status for the answer of a gateway before the array",
		Codes: symbols,
		Make:  makeError,
		// What passes by itself. NON_EXISTENT_VOL and the like would be lies.
		Typical: func(op string) []string {
			if strings.HasSuffix(op, " /credentials") {
				return []string{string(array.TooBusy), "HTTP503"}
			}
			return []string{string(array.TooBusy), string(array.SessionKey), "HTTP503"}
		},
	}, ledger.WSAPI)
}

func symbols() (out []string) {
	for _, k := range array.Kinds() {
		out = append(out, string(k))
	}
	return append(out, slices.Sorted(maps.Keys(api))...)
}

func makeError(_ string, s fault.ErrorSpec) (error, error) {
	if n, ok := strings.CutPrefix(s.Code, httpPrefix); ok {
		status, err := strconv.Atoi(n)
		if err != nil || status < 400 || status > 599 || http.StatusText(status) == "" {
			return nil, fault.Wrong("code", "%q: %q is no status of an error; e.g. HTTP503", s.Code, n)
		}
		if s.Status != 0 {
			return nil, fault.Wrong("status", "the code says it")
		}
		text := s.Message
		if text == "" {
			text = http.StatusText(status)
		}
		return &Fault{Status: status, Desc: text}, nil
	}
	for symbol, f := range api {
		if s.Code == symbol || s.Code == strconv.Itoa(f.Code) {
			f.Desc, f.Status = cmp.Or(s.Message, f.Desc), cmp.Or(s.Status, f.Status)
			return &f, nil
		}
	}
	for _, k := range array.Kinds() {
		w := k.Wire()
		if s.Code != string(k) && s.Code != strconv.Itoa(w.Code) {
			continue
		}
		f := refuse(k, "", texts[k])
		if s.Message != "" {
			f.desc = s.Message
		}
		if f.desc == "" {
			f.desc = strings.ToLower(strings.ReplaceAll(string(k), "_", " "))
		}
		if s.Status != 0 {
			f.status = s.Status
		}
		return f, nil
	}
	return nil, fault.Wrong("code", "%q is no symbol or number of the WSAPI%s", s.Code, nearest.Name(s.Code, symbols()))
}
