package vcenter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	sts "github.com/vmware/govmomi/sts/simulator"
	vapi "github.com/vmware/govmomi/vapi/simulator"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

// restAPI is what is served beside SOAP: the REST API with tags, and the STS.
type restAPI struct {
	v    *VCenter
	vapi http.Handler
	// tokens is the STS.
	tokens http.Handler

	mu   sync.Mutex
	live map[string]bool // REST sessions
}

func newREST(v *VCenter) (*restAPI, error) {
	a := &restAPI{v: v, live: map[string]bool{}}
	v.vim.SessionManager().ValidLogin = func(l *types.Login) bool { return v.sessions.valid(l.UserName, l.Password) }
	v.svc.Listen = v.URL()
	_, a.vapi = vapi.New(v.url, v.vim)
	_, issuer := sts.New(v.url, v.vim.OptionManager().Setting)
	if issuer == nil {
		return nil, errors.New("vcenter: vcsim has no STS")
	}
	a.tokens = &tokenService{v, issuer}
	return a, a.tagZones()
}

// Names of the tag categories, as upstream's topology documentation has them.
const (
	categoryZone   = "k8s-zone"
	categoryRegion = "k8s-region"
)

// sessionHeader carries a REST session, as a header or a cookie.
const sessionHeader = "vmware-api-session-id"

func sessionID(r *http.Request) string {
	if id := r.Header.Get(sessionHeader); id != "" {
		return id
	}
	if c, err := r.Cookie(sessionHeader); err == nil {
		return c.Value
	}
	return ""
}

func (a *restAPI) kill() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.live)
}

func isSessionPath(p string) bool {
	return p == "/rest/com/vmware/cis/session" || p == "/api/session"
}

func (a *restAPI) serve(w http.ResponseWriter, r *http.Request) {
	var h http.Handler
	isREST := strings.HasPrefix(r.URL.Path, "/rest/") || strings.HasPrefix(r.URL.Path, "/api/") || r.URL.Path == "/api"
	switch {
	case isREST:
		// The content library keeps files on this machine's disk.
		if strings.Contains(r.URL.Path, "/content/") || strings.Contains(r.URL.Path, "/vcenter/") {
			http.NotFound(w, r)
			return
		}
		h = a.vapi
	case strings.HasPrefix(r.URL.Path, "/sts/"):
		h = a.tokens
	default:
		http.NotFound(w, r)
		return
	}
	call := fault.Call{Hop: ledger.VCenter, Op: r.Method + " " + r.URL.Path, Component: a.v.component(r.UserAgent())}
	var rec recorder
	err := a.v.in.Do(r.Context(), call, func(ctxt context.Context) error {
		rec = recorder{header: http.Header{}, code: http.StatusOK}
		if isREST && !a.admitted(r) {
			rec.code = http.StatusUnauthorized
			return errUnauthorized
		}
		if r.Body != nil {
			r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
		}
		a.run(h, &rec, r.WithContext(ctxt))
		a.note(r, &rec)
		if rec.code >= 400 {
			return fmt.Errorf("%d %s", rec.code, http.StatusText(rec.code))
		}
		return nil
	})
	switch {
	case errors.Is(err, fault.ErrDrop), errors.Is(err, fault.ErrCrashed):
		panic(http.ErrAbortHandler)
	case err != nil && r.Context().Err() != nil:
		panic(http.ErrAbortHandler)
	case err != nil && rec.code < 400:
		rec = recorder{header: http.Header{}, code: http.StatusServiceUnavailable}
	}
	rec.send(w)
}

var errUnauthorized = errors.New("401 Unauthorized")

// admitted refuses sessions that have been killed.
func (a *restAPI) admitted(r *http.Request) bool {
	if isSessionPath(r.URL.Path) && r.Method == http.MethodPost {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.live[sessionID(r)]
}

// note keeps track of sessions that begin and end.
func (a *restAPI) note(r *http.Request, rec *recorder) {
	if !isSessionPath(r.URL.Path) || rec.code >= 400 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch r.Method {
	case http.MethodDelete:
		delete(a.live, sessionID(r))
	case http.MethodPost:
		var wrapped struct{ Value string }
		var id string
		if json.Unmarshal(rec.body.Bytes(), &wrapped) == nil && wrapped.Value != "" {
			id = wrapped.Value
		} else {
			_ = json.Unmarshal(rec.body.Bytes(), &id)
		}
		if id != "" {
			a.live[id] = true
		}
	}
}

// run calls a handler of vcsim, which may panic on what it did not expect.
func (a *restAPI) run(h http.Handler, rec *recorder, r *http.Request) {
	defer func() {
		if p := recover(); p != nil {
			a.v.log.Error("handler panicked", "path", r.URL.Path, "panic", p)
			*rec = recorder{header: http.Header{}, code: http.StatusInternalServerError}
		}
	}()
	h.ServeHTTP(rec, r)
}

// recorder holds a reply until the interceptor lets it go.
type recorder struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(code int)        { r.code = code }
func (r *recorder) Write(b []byte) (int, error) { return r.body.Write(b) }

func (r *recorder) send(w http.ResponseWriter) {
	for k, vs := range r.header {
		w.Header()[k] = vs
	}
	w.WriteHeader(r.code)
	_, _ = w.Write(r.body.Bytes())
}

// tagZones makes the categories and tags of zones and regions and attaches them
// to the datacenters, clusters and hosts that have them.
func (a *restAPI) tagZones() error {
	v := a.v
	attach, ok := a.vapi.(interface {
		AttachTag(types.ManagedObjectReference, string) types.BaseMethodFault
	})
	if !ok {
		return errors.New("vcenter: vcsim's tag manager can't attach tags")
	}
	made := map[string]bool{}
	tag := func(category, name string, to types.ManagedObjectReference) error {
		cid := "urn:vmomi:InventoryServiceCategory:" + uuidOf(v.cfg.Seed, "category", category) + ":GLOBAL"
		tid := "urn:vmomi:InventoryServiceTag:" + uuidOf(v.cfg.Seed, "tag", category+"/"+name) + ":GLOBAL"
		if !made[cid] {
			made[cid] = true
			if err := a.post("/rest/com/vmware/cis/tagging/category", map[string]any{"create_spec": map[string]any{
				"category_id": cid, "name": category, "description": "", "cardinality": "SINGLE", "associable_types": []string{},
			}}); err != nil {
				return err
			}
		}
		if !made[tid] {
			made[tid] = true
			if err := a.post("/rest/com/vmware/cis/tagging/tag", map[string]any{"create_spec": map[string]any{
				"tag_id": tid, "category_id": cid, "name": name, "description": "",
			}}); err != nil {
				return err
			}
		}
		if f := attach.AttachTag(to, tid); f != nil {
			return &Fault{Fault: f}
		}
		return nil
	}
	both := func(zone, region string, to ref) error {
		if zone != "" {
			if err := tag(categoryZone, zone, to); err != nil {
				return err
			}
		}
		if region != "" {
			return tag(categoryRegion, region, to)
		}
		return nil
	}
	for _, c := range v.inv.centers {
		if err := both(c.Zone, c.Region, c.obj.Self); err != nil {
			return err
		}
	}
	for _, z := range v.inv.zones {
		if err := both(z.Zone, z.Region, z.cluster.Self); err != nil {
			return err
		}
		for i, h := range z.Hosts {
			if err := both(h.Zone, h.Region, z.hosts[i].Self); err != nil {
				return err
			}
		}
	}
	return nil
}

// post makes a REST call in a session of the lab's own, which is gone after it.
func (a *restAPI) post(path string, body any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	do := func(method, path, id string, b []byte) (*recorder, error) {
		r, err := http.NewRequest(method, path, bytes.NewReader(b))
		if err != nil {
			return nil, err
		}
		r.SetBasicAuth(a.v.cfg.User, a.v.cfg.Password)
		r.Header.Set(sessionHeader, id)
		rec := &recorder{header: http.Header{}, code: http.StatusOK}
		a.run(a.vapi, rec, r)
		if rec.code >= 300 {
			return nil, fmt.Errorf("vcenter: %s %s: %d %s", method, path, rec.code, rec.body.String())
		}
		return rec, nil
	}
	rec, err := do(http.MethodPost, "/rest/com/vmware/cis/session", "", nil)
	if err != nil {
		return err
	}
	var id struct{ Value string }
	if err := json.Unmarshal(rec.body.Bytes(), &id); err != nil {
		return err
	}
	if _, err := do(http.MethodPost, path, id.Value, b); err != nil {
		return err
	}
	_, err = do(http.MethodDelete, "/rest/com/vmware/cis/session", id.Value, nil)
	return err
}
