package vcenter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	vapi "github.com/vmware/govmomi/vapi/simulator"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

// restAPI is what is served beside SOAP: the REST API with tags, and the STS.
type restAPI struct {
	v    *VCenter
	vapi http.Handler
	// inner is a session of vcsim's: the sessions of clients are ours.
	inner string
}

func newREST(v *VCenter) (*restAPI, error) {
	a := &restAPI{v: v}
	v.vim.SessionManager().ValidLogin = func(*types.Login) bool { return true } // of inner
	v.svc.Listen = v.URL()
	_, a.vapi = vapi.New(v.url, v.vim)
	return a, a.tagZones()
}

// Names of the tag categories, as upstream's topology documentation has them.
const (
	categoryZone   = "k8s-zone"
	categoryRegion = "k8s-region"
)

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
		h = a.v.tokens
	default:
		http.NotFound(w, r)
		return
	}
	call := fault.Call{Hop: ledger.VCenter, Op: r.Method + " " + r.URL.Path, Component: a.v.component(r.UserAgent())}
	var rec recorder
	err := a.v.in.Do(r.Context(), call, func(ctxt context.Context) error {
		rec = recorder{header: http.Header{}, code: http.StatusOK}
		if r.Body != nil {
			r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
		}
		r := r.WithContext(ctxt)
		switch {
		case isREST && isSessionPath(r.URL.Path):
			a.serveSession(&rec, r)
		case isREST:
			if _, ok := a.v.sessions.rest(sessionID(r)); !ok {
				unauthenticated(&rec, !strings.HasPrefix(r.URL.Path, "/rest/"))
				return errUnauthorized
			}
			r.Header.Set(sessionHeader, a.inner)
			a.run(h, &rec, r)
		default:
			a.run(h, &rec, r)
		}
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

// post makes a REST call of the lab's own.
func (a *restAPI) post(path string, body any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	do := func(path string, b []byte) (*recorder, error) {
		r, err := http.NewRequest(http.MethodPost, path, bytes.NewReader(b))
		if err != nil {
			return nil, err
		}
		r.SetBasicAuth("csilab", "csilab")
		r.Header.Set(sessionHeader, a.inner)
		rec := &recorder{header: http.Header{}, code: http.StatusOK}
		a.run(a.vapi, rec, r)
		if rec.code >= 300 {
			return nil, fmt.Errorf("vcenter: POST %s: %d %s", path, rec.code, rec.body.String())
		}
		return rec, nil
	}
	if a.inner == "" {
		rec, err := do("/rest/com/vmware/cis/session", nil)
		if err != nil {
			return err
		}
		var id struct{ Value string }
		if err := json.Unmarshal(rec.body.Bytes(), &id); err != nil {
			return err
		}
		a.inner = id.Value
	}
	_, err = do(path, b)
	return err
}
