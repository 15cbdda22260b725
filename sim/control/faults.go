package control

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/fault/faultfile"
	"github.com/csilab/csilab/sim/nearest"
	"github.com/csilab/csilab/sim/yamlfile"
)

// FaultRule is a rule of the fault plan.
type FaultRule struct {
	Name       string `json:"name"`
	Hop        string `json:"hop,omitempty"`
	Op         string `json:"op,omitempty"`
	Component  string `json:"component,omitempty"`
	Node       string `json:"node,omitempty"`
	Volume     string `json:"volume,omitempty"`
	Snapshot   string `json:"snapshot,omitempty"`
	Where      string `json:"where,omitempty"`
	Phase      string `json:"phase"`
	AfterRule  string `json:"afterRule,omitempty"`
	Do         string `json:"do"`
	MayNotFire bool   `json:"mayNotFire,omitempty"`
	Seen       int    `json:"seen"`  // calls that matched
	Fired      int    `json:"fired"` // calls that it acted on
	// Held are the calls that stand at its gate now.
	Held []HeldCall `json:"held,omitempty"`
}

// HeldCall stands at a gate.
type HeldCall struct {
	Hop       string `json:"hop"`
	Op        string `json:"op"`
	Component string `json:"component"`
	Node      string `json:"node,omitempty"`
	Volume    string `json:"volume,omitempty"`
	Snapshot  string `json:"snapshot,omitempty"`
}

// Faults are the fault plan of what is served, and what rules are checked
// against.
type Faults struct {
	Plan *fault.Plan
	Lab  faultfile.Lab
}

// WithFaults serves, to who has the token, /v1alpha1/faults: GET lists the rules,
// POST arms those of a file (?file= is what errors call it) or none of them,
// DELETE takes out all, or with ?name= those of a name; and POST
// /v1alpha1/faults/release?name= opens a gate. All else goes to next.
func WithFaults(token string, f Faults, next http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", next)
	const path = "/v1alpha1/faults"
	handle := func(pattern string, do func(r *http.Request) (any, int, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if !allowed(w, r, token) {
				return
			}
			answer, status, err := do(r)
			if err != nil {
				refuse(w, status, err.Error())
				return
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(answer)
		})
	}
	handle("GET "+path, func(*http.Request) (any, int, error) { return faultList(f.Plan.Rules()), 0, nil })
	handle("POST "+path, func(r *http.Request) (any, int, error) {
		b, err := io.ReadAll(io.LimitReader(r.Body, yamlfile.MaxFile+1))
		if err != nil {
			return nil, http.StatusBadRequest, err
		}
		lab := f.Lab
		for _, a := range f.Plan.Rules() {
			lab.Rules = append(lab.Rules, a.Name)
		}
		name := r.URL.Query().Get("file")
		if name == "" {
			name = "faults.yaml"
		}
		rules, err := faultfile.Parse(name, b, lab)
		if err != nil {
			return nil, http.StatusBadRequest, err
		}
		var armed []*fault.Armed
		for _, x := range rules {
			armed = append(armed, f.Plan.Arm(x))
		}
		return faultList(armed), 0, nil
	})
	handle("DELETE "+path, func(r *http.Request) (any, int, error) {
		if name := r.URL.Query().Get("name"); name != "" {
			n := f.Plan.ClearNamed(name)
			if n == 0 {
				return nil, http.StatusNotFound, errors.New("no rule " + strconv.Quote(name) + nearest.Name(name, f.names(false)))
			}
			return map[string]int{"cleared": n}, 0, nil
		}
		return map[string]int{"cleared": f.Plan.ClearAll()}, 0, nil
	})
	handle("POST "+path+"/release", func(r *http.Request) (any, int, error) {
		name := r.URL.Query().Get("name")
		held, err := f.Plan.Release(name)
		if err != nil {
			return nil, http.StatusNotFound, errors.New("no gate " + strconv.Quote(name) + nearest.Name(name, f.names(true)))
		}
		return map[string]int{"released": held}, 0, nil
	})
	for _, p := range []string{path, path + "/release"} {
		mux.HandleFunc(p, func(w http.ResponseWriter, r *http.Request) {
			if allowed(w, r, token) {
				refuse(w, http.StatusMethodNotAllowed, "allowed are GET, POST and DELETE of "+path+", and POST of "+path+"/release")
			}
		})
	}
	return mux
}

// names of rules, or of those that have a gate.
func (f Faults) names(gates bool) (out []string) {
	for _, a := range f.Plan.Rules() {
		if _, gate := a.Do.(*fault.Gate); gate || !gates {
			out = append(out, a.Name)
		}
	}
	return out
}

func faultList(rules []*fault.Armed) List[FaultRule] {
	out := List[FaultRule]{APIVersion, "FaultList", []FaultRule{}}
	for _, a := range rules {
		r := FaultRule{Name: a.Name, Hop: string(a.Hop), Op: a.Op, Component: a.Component, Node: a.Node, Volume: a.Volume, Snapshot: a.Snapshot,
			Where: a.Where.String(), Phase: string(a.Phase), AfterRule: a.AfterRule, Do: a.Do.String(), MayNotFire: a.MayNotFire, Seen: a.Seen(), Fired: a.Fired()}
		for _, c := range a.Held() {
			r.Held = append(r.Held, HeldCall{string(c.Hop), c.Op, c.Component, c.Node, c.Volume, c.Snapshot})
		}
		out.Items = append(out.Items, r)
	}
	return out
}

// Faults lists the rules of the fault plan, as the server gave them.
func (c Client) Faults(ctx context.Context) (json.RawMessage, error) { return c.get(ctx, "faults") }

// Inject arms the rules of a file, or none; file is what errors call it. It
// returns those that were armed.
func (c Client) Inject(ctx context.Context, file string, content []byte) (json.RawMessage, error) {
	return c.do(ctx, http.MethodPost, "faults?file="+url.QueryEscape(file), bytes.NewReader(content))
}

// Clear takes out the rules of a name, or all with "". It returns how many.
func (c Client) Clear(ctx context.Context, name string) (int, error) {
	rest := "faults"
	if name != "" {
		rest += "?name=" + url.QueryEscape(name)
	}
	return c.count(ctx, http.MethodDelete, rest)
}

// Release opens a gate and returns how many calls stood there.
func (c Client) Release(ctx context.Context, name string) (int, error) {
	return c.count(ctx, http.MethodPost, "faults/release?name="+url.QueryEscape(name))
}

func (c Client) count(ctx context.Context, method, rest string) (int, error) {
	b, err := c.do(ctx, method, rest, nil)
	if err != nil {
		return 0, err
	}
	var n struct{ Cleared, Released int }
	if err := json.Unmarshal(b, &n); err != nil {
		return 0, err
	}
	return n.Cleared + n.Released, nil
}

// FaultTable writes rules with a line for each, and one for each call that
// stands at its gate.
func FaultTable(w io.Writer, list json.RawMessage) error {
	var l List[FaultRule]
	if err := json.Unmarshal(list, &l); err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tHOP\tOPERATION\tWHERE\tPHASE\tDO\tSEEN\tFIRED\tHELD")
	for _, r := range l.Items {
		var where []string
		for _, s := range [][2]string{{"component", r.Component}, {"node", r.Node}, {"volume", r.Volume}, {"snapshot", r.Snapshot}, {"after", r.AfterRule}} {
			if s[1] != "" {
				where = append(where, s[0]+" "+s[1])
			}
		}
		if r.Where != "" {
			where = append(where, r.Where)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\n", r.Name, cmp.Or(r.Hop, "any"), cmp.Or(r.Op, "any"), cmp.Or(strings.Join(where, ", "), "any"), r.Phase, r.Do, r.Seen, r.Fired, len(r.Held))
		for _, h := range r.Held {
			fmt.Fprintf(t, "  held\t%s\t%s\t%s\t\t\t\t\t\n", h.Hop, h.Op, strings.Join(slices.DeleteFunc([]string{h.Component, h.Node, h.Volume, h.Snapshot}, func(s string) bool { return s == "" }), " "))
		}
	}
	return t.Flush()
}
