package vcenter

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
	"github.com/vmware/govmomi/vslm"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/fault/sending"
)

// request is one SOAP call on its way. vcsim's own dispatcher
// (govmomi v0.56.0 simulator/simulator.go ServeSDK) loses what this lab needs:
// the caller's context, a session that can die, and the process when a method
// panics.
type request struct {
	path   string
	agent  string
	addr   string
	cookie string // of HTTP; the SOAP header's wins on the endpoints that use it
	login  string // cookie of the session that this request opened
	method *simulator.Method
	reg    *simulator.Registry
	ctx    context.Context // ends with the request; carries the cause
}

type requestKey struct{}

// requestOf finds the request that a simulator method runs for. It is nil for
// calls that the lab makes itself.
func requestOf(ctx context.Context) *request {
	r, _ := ctx.Value(requestKey{}).(*request)
	return r
}

// lifetime is the context that simulator methods get: tasks outlive their
// request, so it ends with the server; its values are the request's.
type lifetime struct {
	context.Context
	values context.Context
}

func (l lifetime) Value(key any) any {
	if v := l.values.Value(key); v != nil {
		return v
	}
	return l.Context.Value(key)
}

// optOut takes an object out of vcsim's lock per object: it has its own.
type optOut struct{}

func (*optOut) Lock()   {}
func (*optOut) Unlock() {}

// registry is the one that serves an endpoint.
func (v *VCenter) registry(path string) *simulator.Registry {
	return v.base.For(path).Map
}

// context makes a simulator context for a call. Locks are held by context, so
// each call needs its own.
func (v *VCenter) context(ctx context.Context, reg *simulator.Registry, s *session) *simulator.Context {
	c := *v.base
	c.Context = lifetime{v.ctx, ctx}
	c.Map = reg
	c.Session = nil
	if s != nil {
		c.Session = v.sessions.copyOf(s)
	}
	return &c
}

// internal makes a context for what the lab itself does to the inventory.
func (v *VCenter) internal() *simulator.Context {
	return v.context(v.ctx, v.vim, v.self)
}

// anonymous lists what may be called without a session.
var anonymous = map[string]bool{
	"Login": true, "LoginByToken": true, "CloneSession": true,
	"RetrieveServiceContent": true, "PbmRetrieveServiceContent": true, "RetrieveContent": true,
	"RetrieveProperties": true, "RetrievePropertiesEx": true,
}

// call runs a decoded request. Whatever goes wrong in a method, the caller gets
// a fault and the process lives.
func (v *VCenter) call(r *request, s *session) (res soap.HasFault) {
	m := r.method
	ctx := v.context(context.WithValue(r.ctx, requestKey{}, r), r.reg, s)
	ctx.Header = m.Header
	ctx.Caller = &m.This
	refuse := func(f types.BaseMethodFault) soap.HasFault {
		return replyFault{simulator.Fault("", f)}
	}
	if s == nil && !anonymous[m.Name] {
		return refuse(&types.NotAuthenticated{NoPermission: types.NoPermission{Object: &m.This, PrivilegeId: "System.View"}})
	}
	handler := v.receiver(ctx, r, s)
	if handler == nil {
		return refuse(&types.ManagedObjectNotFound{Obj: m.This})
	}
	fn := reflect.ValueOf(handler).MethodByName(methodName(m.Name))
	if !callable(fn, m.Body) {
		return refuse(&types.MethodNotFound{Receiver: m.This, Method: m.Name})
	}
	if e, ok := handler.(mo.Entity); ok && slices.Contains(e.Entity().DisabledMethod, m.Name) {
		return refuse(&types.MethodDisabled{})
	}
	if f := v.guard(ctx, m); f != nil {
		return refuse(f)
	}
	caller, limited := v.restricted(s)
	if limited {
		if f := v.access.check(caller, v.needs(caller, m)); f != nil {
			return refuse(f)
		}
	}
	args := []reflect.Value{reflect.ValueOf(m.Body)}
	if fn.Type().NumIn() == 2 {
		args = []reflect.Value{reflect.ValueOf(ctx), args[0]}
	}
	unlock := ctx.Map.AcquireLock(ctx, handler)
	defer func() {
		unlock()
		if p := recover(); p != nil {
			v.log.Error("method panicked", "method", m.Name, "this", m.This.String(), "panic", p, "stack", string(debug.Stack()))
			res = replyFault{simulator.Fault(fmt.Sprintf("A general system error occurred: %v", p), &types.SystemError{Reason: "internal error in " + m.Name})}
		}
	}()
	res = fn.Call(args)[0].Interface().(soap.HasFault)
	if limited && m.This.Type == "SearchIndex" {
		v.found(caller, res)
	}
	if s != nil && strings.HasPrefix(m.Name, "Destroy") && s.Registry.Get(m.This) == nil {
		v.forget(ctx, m.This)
	}
	return res
}

// forget tells filters on an object of a session that it is gone, and drops its
// lock: vcsim keeps that in the inventory's table, where it would stay.
func (v *VCenter) forget(ctx *simulator.Context, o ref) {
	if strings.HasPrefix(o.Value, "session[") {
		v.vim.Remove(ctx, o)
	}
}

// methodName maps a method of the API to the Go method of vcsim.
func methodName(name string) string {
	if name == "" {
		return ""
	}
	name = strings.ToUpper(name[:1]) + name[1:]
	if base, ok := strings.CutSuffix(name, "_Task"); ok {
		name = base + "Task"
	}
	return name
}

var hasFault = reflect.TypeFor[soap.HasFault]()

// callable says whether fn is a method of the API that takes body: objects
// have other exported methods, which must not be reachable from outside.
func callable(fn reflect.Value, body any) bool {
	if !fn.IsValid() {
		return false
	}
	t := fn.Type()
	n := t.NumIn()
	return n >= 1 && n <= 2 && t.NumOut() == 1 && t.Out(0) == hasFault &&
		reflect.TypeOf(body).AssignableTo(t.In(n-1)) &&
		(n == 1 || t.In(0) == reflect.TypeFor[*simulator.Context]())
}

// receiver finds the object that a method is called on.
func (v *VCenter) receiver(ctx *simulator.Context, r *request, s *session) mo.Reference {
	this := r.method.This
	if r.reg == v.vim {
		if _, ok := v.vim.Get(this).(mo.Entity); ok && methodName(r.method.Name) == "SetCustomValue" {
			return &attributed{ref: this, v: v}
		}
		switch this.Type {
		case "SessionManager":
			if v.vim.Get(this) != nil {
				if sessionMethods[r.method.Name] {
					m := &sessionManager{ss: v.sessions, req: r, s: s}
					m.Self = this
					return m
				}
			}
		case "SearchIndex":
			if si, ok := v.vim.Get(this).(*simulator.SearchIndex); ok && r.method.Name == "FindByUuid" {
				return &searchIndex{SearchIndex: si, v: v}
			}
		case "ViewManager":
			if r.method.Name == "CreateListView" && s != nil && v.vim.Get(this) != nil {
				m := &viewManager{s: s, w: v.watch}
				m.Self = this
				return m
			}
		case "VcenterVStorageObjectManager", "VirtualDiskManager":
			return v.face.DiskManager(this)
		}
		if o := v.ownReceiver(this, r.method.Name); o != nil {
			return o
		}
	}
	if s != nil {
		if o := s.Registry.Get(this); o != nil {
			return o
		}
		if r.reg == v.vim {
			return ctx.Session.Get(this)
		}
	}
	o := r.reg.Get(this)
	if o == nil && r.reg == v.vim && this == v.content.PropertyCollector {
		return v.vim.Get(this)
	}
	return o
}

// sessionOf finds the session of a request by the SOAP header that the other
// endpoints use or by the cookie of /sdk.
func (v *VCenter) sessionOf(r *request) *session {
	if c := r.method.Header.Cookie; c != nil && c.Value != "" {
		if s := v.sessions.get(c.Value); s != nil {
			return s
		}
	}
	if r.reg.Path == vslm.Path { // takes no other
		return nil
	}
	return v.sessions.get(r.cookie)
}

// errFull is the refusal of a call that would need one more session.
var errFull = &HTTPError{http.StatusServiceUnavailable}

// serveSOAP answers a SOAP request at one of the endpoints.
func (v *VCenter) serveSOAP(w http.ResponseWriter, hr *http.Request, reg *simulator.Registry) {
	if hr.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	body, err := readBody(w, hr)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r := &request{path: hr.URL.Path, agent: hr.UserAgent(), reg: reg, ctx: hr.Context()}
	r.addr, _, _ = net.SplitHostPort(hr.RemoteAddr)
	if c, err := hr.Cookie(soap.SessionCookieName); err == nil {
		r.cookie = c.Value
	}
	var res soap.HasFault
	var how *fault.Body
	var login string
	r.method, err = v.read(reg, body)
	if err != nil {
		res = replyFault{simulator.Fault(err.Error(), &types.InvalidRequest{})}
	} else {
		var call fault.Call
		if v.in != nil {
			call = v.describe(r)
			call.Cause = fault.CauseIn(hr.Header)
		}
		delivered := false
		err = v.in.Do(fault.About(hr.Context(), hr.Host), call, func(ctx context.Context) error {
			d := *r
			if delivered { // methods keep parts of what they are given
				if d.method, err = v.read(reg, body); err != nil {
					return err
				}
			}
			delivered = true
			d.ctx = ctx
			got, err := v.perform(&d)
			if !fault.Discarded(ctx) {
				res, login = got, d.login
			}
			return err
		})
		if errors.As(err, &how) {
			err = how.Err
		}
		switch {
		case err == nil:
		case errors.Is(err, fault.ErrDrop), errors.Is(err, fault.ErrCrashed):
			panic(http.ErrAbortHandler)
		case errors.As(err, new(*HTTPError)):
			var h *HTTPError
			errors.As(err, &h)
			http.Error(w, h.Error(), h.Status)
			return
		default:
			if f, ok := asFault(err); ok {
				res = replyFault{f}
			} else if hr.Context().Err() != nil {
				panic(http.ErrAbortHandler)
			} else {
				res = replyFault{simulator.Fault("A general system error occurred: "+err.Error(), &types.SystemError{Reason: err.Error()})}
			}
		}
	}
	out, ok, err := encode(reg.Namespace, res)
	if err != nil {
		v.log.Error("encode", "err", err)
		http.Error(w, "internal error", http.StatusInternalServerError)
		return
	}
	if login != "" && ok {
		http.SetCookie(w, &http.Cookie{Name: soap.SessionCookieName, Value: login, Path: "/", HttpOnly: true, Secure: v.url.Scheme == "https"})
	}
	w.Header().Set("Content-Type", "text/xml; charset=utf-8")
	status := http.StatusOK
	if !ok {
		status = http.StatusInternalServerError
	}
	sending.Reply(hr.Context(), w, status, out, how)
}

// perform carries a request out. The error is that of the reply, for the
// ledger, or one that is no SOAP fault.
func (v *VCenter) perform(r *request) (soap.HasFault, error) {
	s := v.sessionOf(r)
	if s == nil && v.sessions.full() {
		return nil, errFull
	}
	defer v.sessions.begin(s)()
	res := v.call(r, s)
	if v.cfg.StateDir != "" && res.Fault() == nil && changes(r.method.Name) {
		if err := v.keep(); err != nil {
			res = replyFault{simulator.Fault("A general system error occurred: "+err.Error(), &types.SystemError{Reason: err.Error()})}
		}
	}
	return res, faultError(res)
}

// read decodes a request. vcsim answers Fetch, which any object has, at the
// property collector.
func (v *VCenter) read(reg *simulator.Registry, body []byte) (*simulator.Method, error) {
	m, err := decode(reg.Namespace, body)
	if err == nil && m.Name == "Fetch" {
		m.This = v.content.PropertyCollector
	}
	return m, err
}

// decode reads the envelope of a request. UnmarshalBody trusts its input in
// places (a body type without This, for one).
func decode(namespace string, body []byte) (m *simulator.Method, err error) {
	defer func() {
		if p := recover(); p != nil {
			m, err = nil, fmt.Errorf("malformed request: %v", p)
		}
	}()
	return simulator.UnmarshalBody(typeFunc(namespace), body)
}
