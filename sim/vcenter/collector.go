package vcenter

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

// The property collector of vcsim v0.56.0 polls on a 20 ms ticker
// (simulator/property_collector.go:910), loses updates of objects that come
// into view while it waits, and can deadlock with ModifyListView (a filter's
// lock and a view's are taken in both orders, property_filter.go:35,68, fixed
// by govmomi PR #4109 after the tag). This one remembers what it told its
// client, is told which objects changed, and sends the difference: a finished
// task that is in view is always reported, and no lock is held while another
// is taken.

type ref = types.ManagedObjectReference

// watch is the one handler in the inventory's registry: it knows which filters
// look at an object.
type watch struct {
	mo.PropertyCollector // a reference to be registered under

	inventory *simulator.Registry

	mu    sync.Mutex
	byRef map[ref]map[*filter]struct{}
	deep  map[*filter]struct{} // filters whose traversal any object may be part of
	// going are objects that are being removed: the registry tells so before it
	// forgets them. They count as gone. A filter that tracks an object and then
	// finds it here, or not at all, has seen its end; one that finds it anywhere
	// else will be told.
	going map[ref]struct{}
}

func newWatch(inventory *simulator.Registry) *watch {
	w := &watch{inventory: inventory, byRef: map[ref]map[*filter]struct{}{}, deep: map[*filter]struct{}{}, going: map[ref]struct{}{}}
	w.Self = ref{Type: "PropertyCollector", Value: "csilab-watch"}
	return w
}

func (w *watch) track(f *filter, refs ...ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range refs {
		if w.byRef[r] == nil {
			w.byRef[r] = map[*filter]struct{}{}
		}
		w.byRef[r][f] = struct{}{}
	}
}

func (w *watch) untrack(f *filter, refs ...ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range refs {
		delete(w.byRef[r], f)
		if len(w.byRef[r]) == 0 {
			delete(w.byRef, r)
		}
	}
}

func (w *watch) forget(f *filter) {
	f.pc.mu.Lock()
	refs := make([]ref, 0, len(f.known)+len(f.roots))
	for r := range f.known {
		refs = append(refs, r)
	}
	for r := range f.roots {
		refs = append(refs, r)
	}
	f.pc.mu.Unlock()
	w.untrack(f, refs...)
	w.mu.Lock()
	delete(w.deep, f)
	w.mu.Unlock()
}

// isGoing says whether an object is being removed.
func (w *watch) isGoing(r ref) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.going[r]
	return ok
}

// goes notes that an object is being removed, and drops the notes of those that
// the registry has forgotten by now.
func (w *watch) goes(r ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for old := range w.going {
		if w.inventory.Get(old) == nil {
			delete(w.going, old)
		}
	}
	w.going[r] = struct{}{}
}

// comes takes back that an object is being removed: there is one of its name
// again.
func (w *watch) comes(r ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.going, r)
}

// changed marks an object for the filters that look at it.
func (w *watch) changed(r ref) {
	w.mu.Lock()
	fs := make([]*filter, 0, len(w.byRef[r])+len(w.deep))
	for f := range w.byRef[r] {
		fs = append(fs, f)
	}
	// Tasks come and go all the time and no traversal leads through one.
	if r.Type != "Task" {
		for f := range w.deep {
			fs = append(fs, f)
		}
	}
	w.mu.Unlock()
	for _, f := range fs {
		f.mark(r)
	}
}

// PutObject, UpdateObject and RemoveObject implement simulator.RegisterObject.
// They are called with locks of objects held, so they only take notes.
func (w *watch) PutObject(_ *simulator.Context, o mo.Reference) {
	w.comes(o.Reference())
	w.changed(o.Reference())
}

// UpdateObject implements simulator.RegisterObject.
func (w *watch) UpdateObject(_ *simulator.Context, o mo.Reference, _ []types.PropertyChange) {
	w.changed(o.Reference())
}

// RemoveObject implements simulator.RegisterObject.
func (w *watch) RemoveObject(_ *simulator.Context, r ref) {
	w.goes(r)
	w.changed(r)
}

// collector is a PropertyCollector of one session.
type collector struct {
	simulator.PropertyCollector // Retrieve… keep no state in it

	v *VCenter
	s *session

	mu      sync.Mutex
	filters []*filter
	wake    chan struct{}      // something was marked
	turn    chan struct{}      // held by the call that waits
	cancel  context.CancelFunc // ends the call that waits
	gone    bool

	// The state of the conversation; whoever holds turn owns it.
	version int
	sent    *types.UpdateSet // what took the client to version, for a lost reply
	pending []change
}

// change is an update that waits to be sent, or an object that was found to be
// missing.
type change struct {
	filter  ref
	update  types.ObjectUpdate
	missing *types.MissingObject
}

func newCollector(v *VCenter, s *session, self ref) *collector {
	pc := &collector{v: v, s: s, wake: make(chan struct{}, 1), turn: make(chan struct{}, 1)}
	pc.Self = self
	return pc
}

// The singleton is not a handler of the registry: watch is.
func (pc *collector) PutObject(*simulator.Context, mo.Reference) {}
func (pc *collector) UpdateObject(*simulator.Context, mo.Reference, []types.PropertyChange) {
}
func (pc *collector) RemoveObject(*simulator.Context, ref) {}

// Reference implements mo.Reference.
func (pc *collector) Reference() ref { return pc.Self }

// filter is a PropertyFilter of a collector.
type filter struct {
	mo.PropertyFilter
	optOut

	pc    *collector
	roots map[ref]struct{} // where traversals start
	paths []string         // properties, for a filter on tasks only; see onTasks

	// Under pc.mu.
	all   bool // the selection itself may have changed
	dirty map[ref]struct{}
	// known is what the client was told; whoever holds pc.turn writes it, under pc.mu.
	known map[ref]map[string]any
	// missing are the roots that the client was told are missing; likewise.
	missing map[ref]struct{}
}

// Reference implements mo.Reference.
func (f *filter) Reference() ref { return f.Self }

func (f *filter) mark(r ref) {
	f.pc.mu.Lock()
	if _, ok := f.known[r]; ok {
		f.dirty[r] = struct{}{}
	} else {
		f.all = true
	}
	if _, ok := f.roots[r]; ok || f.isDeep() {
		f.all = true
	}
	f.pc.mu.Unlock()
	select {
	case f.pc.wake <- struct{}{}:
	default:
	}
}

func (f *filter) isGone() bool {
	f.pc.mu.Lock()
	defer f.pc.mu.Unlock()
	return !slices.Contains(f.pc.filters, f)
}

// isDeep says whether objects other than the roots take part in a traversal.
func (f *filter) isDeep() bool {
	for _, o := range f.Spec.ObjectSet {
		n := len(o.SelectSet)
		if n > 1 {
			return true
		}
		if n == 1 {
			if t, ok := o.SelectSet[0].(*types.TraversalSpec); !ok || len(t.SelectSet) > 0 {
				return true
			}
		}
	}
	return false
}

// reportsMissing says whether objects that are not there are told as missing,
// instead of failing the call (PropertyFilterSpec.reportMissingObjectsInResults).
func reportsMissing(s types.PropertyFilterSpec) bool {
	return s.ReportMissingObjectsInResults != nil && *s.ReportMissingObjectsInResults
}

// there says whether an object can be looked at.
func (pc *collector) there(ctx *simulator.Context, r ref) bool {
	return ctx.Session.Get(r) != nil && !pc.v.watch.isGoing(r)
}

// CreateFilter implements the method of the API.
func (pc *collector) CreateFilter(ctx *simulator.Context, req *types.CreateFilter) soap.HasFault {
	for _, o := range req.Spec.ObjectSet {
		if !reportsMissing(req.Spec) && !pc.there(ctx, o.Obj) {
			return &methods.CreateFilterBody{Fault_: simulator.Fault("", &types.ManagedObjectNotFound{Obj: o.Obj})}
		}
	}
	f := &filter{pc: pc, roots: map[ref]struct{}{}, all: true, dirty: map[ref]struct{}{}, known: map[ref]map[string]any{}, missing: map[ref]struct{}{}}
	f.Self = pc.s.next("PropertyFilter")
	f.Spec, f.PartialUpdates = req.Spec, req.PartialUpdates
	f.paths, _ = onTasks(pc.s, f.Spec)
	for _, o := range f.Spec.ObjectSet {
		f.roots[o.Obj] = struct{}{}
		pc.v.watch.track(f, o.Obj)
	}
	if f.isDeep() {
		pc.v.watch.mu.Lock()
		pc.v.watch.deep[f] = struct{}{}
		pc.v.watch.mu.Unlock()
	}
	pc.s.Registry.Put(f)
	pc.mu.Lock()
	pc.filters = append(pc.filters, f)
	pc.Filter = append(pc.Filter, f.Self)
	pc.mu.Unlock()
	select {
	case pc.wake <- struct{}{}:
	default:
	}
	return &methods.CreateFilterBody{Res: &types.CreateFilterResponse{Returnval: f.Self}}
}

// DestroyPropertyFilter implements the method of the API.
func (f *filter) DestroyPropertyFilter(ctx *simulator.Context, _ *types.DestroyPropertyFilter) soap.HasFault {
	pc := f.pc
	pc.mu.Lock()
	for i, g := range pc.filters {
		if g == f {
			pc.filters = append(pc.filters[:i:i], pc.filters[i+1:]...)
		}
	}
	simulator.RemoveReference(&pc.Filter, f.Self)
	pc.mu.Unlock()
	pc.v.watch.forget(f)
	pc.s.Registry.Remove(ctx, f.Self)
	return &methods.DestroyPropertyFilterBody{Res: &types.DestroyPropertyFilterResponse{}}
}

// CreatePropertyCollector implements the method of the API.
func (pc *collector) CreatePropertyCollector(*simulator.Context, *types.CreatePropertyCollector) soap.HasFault {
	n := newCollector(pc.v, pc.s, pc.s.next("PropertyCollector"))
	pc.s.Registry.Put(n)
	return &methods.CreatePropertyCollectorBody{Res: &types.CreatePropertyCollectorResponse{Returnval: n.Self}}
}

// DestroyPropertyCollector implements the method of the API.
func (pc *collector) DestroyPropertyCollector(ctx *simulator.Context, _ *types.DestroyPropertyCollector) soap.HasFault {
	pc.destroy()
	for _, r := range pc.Filter {
		pc.s.Registry.Remove(ctx, r)
	}
	pc.s.Registry.Remove(ctx, pc.Self)
	return &methods.DestroyPropertyCollectorBody{Res: &types.DestroyPropertyCollectorResponse{}}
}

// destroy ends the call that waits and forgets the filters.
func (pc *collector) destroy() {
	pc.mu.Lock()
	fs := pc.filters
	pc.filters, pc.gone = nil, true
	if pc.cancel != nil {
		pc.cancel()
	}
	pc.mu.Unlock()
	for _, f := range fs {
		pc.v.watch.forget(f)
	}
}

// CancelWaitForUpdates implements the method of the API.
func (pc *collector) CancelWaitForUpdates(*simulator.Context, *types.CancelWaitForUpdates) soap.HasFault {
	pc.mu.Lock()
	if pc.cancel != nil {
		pc.cancel()
	}
	pc.mu.Unlock()
	return &methods.CancelWaitForUpdatesBody{Res: &types.CancelWaitForUpdatesResponse{}}
}

// maxUpdates is vCenter's default for WaitOptions.maxObjectUpdates.
const maxUpdates = 100

// WaitForUpdatesEx implements the method of the API. It ends at once with
// NotAuthenticated when its session ends.
func (pc *collector) WaitForUpdatesEx(ctx *simulator.Context, req *types.WaitForUpdatesEx) soap.HasFault {
	body := &methods.WaitForUpdatesExBody{}
	set, fault := pc.wait(ctx, req)
	if fault != nil {
		body.Fault_ = simulator.Fault("", fault)
		return body
	}
	body.Res = &types.WaitForUpdatesExResponse{Returnval: set}
	return body
}

// WaitForUpdates implements the deprecated method of the API.
func (pc *collector) WaitForUpdates(ctx *simulator.Context, req *types.WaitForUpdates) soap.HasFault {
	body := &methods.WaitForUpdatesBody{}
	set, fault := pc.wait(ctx, &types.WaitForUpdatesEx{This: req.This, Version: req.Version})
	if fault != nil {
		body.Fault_ = simulator.Fault("", fault)
		return body
	}
	body.Res = &types.WaitForUpdatesResponse{Returnval: *set}
	return body
}

// CheckForUpdates implements the deprecated method of the API.
func (pc *collector) CheckForUpdates(ctx *simulator.Context, req *types.CheckForUpdates) soap.HasFault {
	zero := int32(0)
	body := &methods.CheckForUpdatesBody{}
	set, fault := pc.wait(ctx, &types.WaitForUpdatesEx{This: req.This, Version: req.Version, Options: &types.WaitOptions{MaxWaitSeconds: &zero}})
	if fault != nil {
		body.Fault_ = simulator.Fault("", fault)
		return body
	}
	body.Res = &types.CheckForUpdatesResponse{Returnval: set}
	return body
}

func (pc *collector) wait(ctx *simulator.Context, req *types.WaitForUpdatesEx) (*types.UpdateSet, types.BaseMethodFault) {
	var timeout <-chan time.Time
	once, limit := false, maxUpdates
	if o := req.Options; o != nil {
		if o.MaxWaitSeconds != nil {
			switch s := *o.MaxWaitSeconds; {
			case s == 0:
				once = true
			case s > 0:
				t := time.NewTimer(time.Duration(s) * time.Second)
				defer t.Stop()
				timeout = t.C
			}
		}
		if o.MaxObjectUpdates > 0 && int(o.MaxObjectUpdates) < limit {
			limit = int(o.MaxObjectUpdates)
		}
	}
	// The request's context ends when its client goes away, the method's with
	// the server.
	canceled, cancel := context.WithCancel(ctx)
	defer cancel()
	if r := requestOf(ctx); r != nil {
		defer context.AfterFunc(r.ctx, cancel)()
	}

	// One call per collector: a newer one takes the place of an older.
	// Unverified: what a vCenter does with a second call.
	pc.mu.Lock()
	if pc.gone {
		pc.mu.Unlock()
		if pc.ended() {
			return nil, pc.over(ctx)
		}
		return nil, &types.ManagedObjectNotFound{Obj: pc.Self}
	}
	if pc.cancel != nil {
		pc.cancel()
	}
	pc.cancel = cancel
	pc.mu.Unlock()
	select {
	case pc.turn <- struct{}{}:
		defer func() { <-pc.turn }()
	case <-canceled.Done():
		return nil, pc.over(ctx)
	}

	first := req.Version == ""
	switch {
	case first:
		pc.restart()
	case req.Version == strconv.Itoa(pc.version):
		pc.sent = nil
	case pc.sent != nil && req.Version == strconv.Itoa(pc.version-1):
		return pc.sent, nil // the reply that said so was lost
	default:
		return nil, &types.InvalidCollectorVersion{}
	}
	for {
		if len(pc.pending) == 0 {
			if fault := pc.compute(ctx, first); fault != nil {
				return nil, fault
			}
		}
		if len(pc.pending) > 0 || first {
			return pc.reply(limit), nil
		}
		if once {
			return nil, nil
		}
		select {
		case <-pc.wake:
		case <-timeout:
			return nil, nil
		case <-pc.s.dead:
			return nil, pc.over(ctx)
		case <-canceled.Done():
			return nil, pc.over(ctx)
		}
	}
}

// over says why a wait has ended. The end of a session cancels its waits too, and so
// does the end of the connection, as when the vCenter goes down: what ends at one
// moment has all ended once the wait has its turn.
func (pc *collector) over(ctx context.Context) types.BaseMethodFault {
	pc.v.in.Await(ctx, fault.Call{Hop: ledger.VCenter, Op: "end of a wait", Request: pc.Self.Value})
	if pc.ended() {
		return &types.NotAuthenticated{NoPermission: types.NoPermission{Object: &pc.Self, PrivilegeId: "System.View"}}
	}
	return &types.RequestCanceled{}
}

// ended says whether the session has.
func (pc *collector) ended() bool {
	select {
	case <-pc.s.dead:
		return true
	default:
		return false
	}
}

// restart makes the next reply say everything.
func (pc *collector) restart() {
	pc.pending, pc.sent = nil, nil
	pc.mu.Lock()
	defer pc.mu.Unlock()
	for _, f := range pc.filters {
		f.all = true
		clear(f.missing)
		// What is known stays tracked; it is told again as if new.
		for r := range f.known {
			f.known[r] = nil
		}
	}
}

// reply takes up to limit pending updates and turns the version.
func (pc *collector) reply(limit int) *types.UpdateSet {
	pc.version++
	set := &types.UpdateSet{Version: strconv.Itoa(pc.version)}
	n := min(limit, len(pc.pending))
	for _, c := range pc.pending[:n] {
		last := len(set.FilterSet) - 1
		if last < 0 || set.FilterSet[last].Filter != c.filter {
			set.FilterSet = append(set.FilterSet, types.PropertyFilterUpdate{Filter: c.filter})
			last++
		}
		if c.missing != nil {
			set.FilterSet[last].MissingSet = append(set.FilterSet[last].MissingSet, *c.missing)
			continue
		}
		set.FilterSet[last].ObjectSet = append(set.FilterSet[last].ObjectSet, c.update)
	}
	pc.pending = pc.pending[n:]
	if len(pc.pending) > 0 {
		yes := true
		set.Truncated = &yes
	}
	pc.sent = set
	return set
}

// compute finds what has changed since the client was told last. strict
// refuses a filter on an object that does not exist.
func (pc *collector) compute(ctx *simulator.Context, strict bool) types.BaseMethodFault {
	pc.mu.Lock()
	fs := append([]*filter(nil), pc.filters...)
	pc.mu.Unlock()
	for _, f := range fs {
		if fault := f.compute(ctx, strict); fault != nil {
			return fault
		}
	}
	return nil
}

func (f *filter) compute(ctx *simulator.Context, strict bool) types.BaseMethodFault {
	pc := f.pc
	pc.mu.Lock()
	all, dirty := f.all, f.dirty
	f.all, f.dirty = false, map[ref]struct{}{}
	pc.mu.Unlock()
	if !all && len(dirty) == 0 {
		return nil
	}
	strict = strict && !reportsMissing(f.Spec)
	var objects []types.ObjectContent
	var still map[ref]struct{} // selected as before, and not changed
	var fault types.BaseMethodFault
	if f.paths != nil {
		objects, still, fault = f.gather(ctx, strict && all, all, dirty)
	} else {
		objects, fault = f.collect(ctx, strict && all, all, dirty)
	}
	if fault != nil {
		pc.mu.Lock()
		f.all = true
		maps.Copy(f.dirty, dirty)
		pc.mu.Unlock()
		return fault
	}
	if f.isGone() {
		// Destroyed meanwhile: what was tracked since would stay for ever.
		pc.v.watch.forget(f)
		return nil
	}
	seen := make(map[ref]struct{}, len(objects))
	pc.mu.Lock()
	defer pc.mu.Unlock()
	for _, o := range objects {
		if _, ok := seen[o.Obj]; ok {
			continue
		}
		seen[o.Obj] = struct{}{}
		if u, ok := f.difference(o); ok {
			pc.pending = append(pc.pending, change{filter: f.Self, update: u})
		}
	}
	candidates := dirty
	if all {
		candidates = make(map[ref]struct{}, len(f.known))
		for r := range f.known {
			candidates[r] = struct{}{}
		}
	}
	for r := range candidates {
		if _, ok := seen[r]; ok {
			continue
		}
		if _, ok := still[r]; ok {
			continue
		}
		told, ok := f.known[r]
		if !ok {
			continue
		}
		delete(f.known, r)
		if _, ok := f.roots[r]; !ok {
			pc.v.watch.untrack(f, r)
		}
		if told == nil {
			// Selected, but gone before it could be read: as an object that a list
			// view still names after it was removed. The client does not know it.
			continue
		}
		pc.pending = append(pc.pending, change{filter: f.Self, update: types.ObjectUpdate{Kind: types.ObjectUpdateKindLeave, Obj: r}})
	}
	if reportsMissing(f.Spec) {
		f.miss(ctx)
	}
	return nil
}

// miss tells which roots are not there, each once; pc.mu is held.
func (f *filter) miss(ctx *simulator.Context) {
	for r := range f.roots {
		_, told := f.missing[r]
		switch there := f.pc.there(ctx, r); {
		case there:
			delete(f.missing, r)
		case !told:
			f.missing[r] = struct{}{}
			fault := &types.ManagedObjectNotFound{Obj: r}
			f.pc.pending = append(f.pc.pending, change{filter: f.Self, missing: &types.MissingObject{
				Obj: r, Fault: types.LocalizedMethodFault{Fault: fault, LocalizedMessage: textOf(fault)},
			}})
		}
	}
}

// collect reads what the filter selects, or with all false what is dirty.
func (f *filter) collect(ctx *simulator.Context, strict, all bool, dirty map[ref]struct{}) ([]types.ObjectContent, types.BaseMethodFault) {
	pc := f.pc
	spec := f.Spec
	if !all {
		spec.ObjectSet = objectsOf(dirty)
	}
	objects, fault := pc.collect(ctx, spec, strict)
	if fault != nil {
		return nil, fault
	}
	if all {
		// An object that comes into view may change before it is tracked: track
		// it first, then look again.
		fresh := map[ref]struct{}{}
		pc.mu.Lock()
		for _, o := range objects {
			if _, ok := f.known[o.Obj]; !ok {
				fresh[o.Obj] = struct{}{}
				f.known[o.Obj] = nil
			}
		}
		pc.mu.Unlock()
		if len(fresh) > 0 {
			for r := range fresh {
				pc.v.watch.track(f, r)
			}
			spec.ObjectSet = objectsOf(fresh)
			again, fault := pc.collect(ctx, spec, false)
			if fault != nil {
				return nil, fault
			}
			byRef := make(map[ref]types.ObjectContent, len(again))
			for _, o := range again {
				byRef[o.Obj] = o
			}
			for i, o := range objects {
				if _, ok := fresh[o.Obj]; ok {
					if n, ok := byRef[o.Obj]; ok {
						objects[i] = n
					}
				}
			}
		}
	}
	return objects, nil
}

// difference compares an object with what the client knows and notes it.
func (f *filter) difference(o types.ObjectContent) (types.ObjectUpdate, bool) {
	old := f.known[o.Obj]
	now := make(map[string]any, len(o.PropSet))
	u := types.ObjectUpdate{Kind: types.ObjectUpdateKindModify, Obj: o.Obj}
	for _, p := range o.PropSet {
		now[p.Name] = p.Val
		if was, ok := old[p.Name]; !ok || !reflect.DeepEqual(was, p.Val) {
			u.ChangeSet = append(u.ChangeSet, types.PropertyChange{Name: p.Name, Op: types.PropertyChangeOpAssign, Val: p.Val})
		}
	}
	for name := range old {
		if _, ok := now[name]; !ok {
			u.ChangeSet = append(u.ChangeSet, types.PropertyChange{Name: name, Op: types.PropertyChangeOpAssign})
		}
	}
	f.known[o.Obj] = now
	if old == nil {
		u.Kind, u.MissingSet = types.ObjectUpdateKindEnter, o.MissingSet
		return u, true
	}
	return u, len(u.ChangeSet) > 0
}

func objectsOf(refs map[ref]struct{}) []types.ObjectSpec {
	out := make([]types.ObjectSpec, 0, len(refs))
	for r := range refs {
		out = append(out, types.ObjectSpec{Obj: r})
	}
	return out
}

// collect retrieves a copy of the selected properties, but not of what is
// being removed. Only the lock of the object being read is held, by vcsim.
func (pc *collector) collect(ctx *simulator.Context, spec types.PropertyFilterSpec, strict bool) ([]types.ObjectContent, types.BaseMethodFault) {
	lenient := !strict
	there := make([]types.ObjectSpec, 0, len(spec.ObjectSet))
	for _, o := range spec.ObjectSet {
		if !pc.v.watch.isGoing(o.Obj) {
			there = append(there, o)
		} else if strict {
			return nil, &types.ManagedObjectNotFound{Obj: o.Obj}
		}
	}
	spec.ObjectSet = there
	spec.ReportMissingObjectsInResults = &lenient
	res := pc.RetrievePropertiesEx(ctx, &types.RetrievePropertiesEx{This: pc.Self, SpecSet: []types.PropertyFilterSpec{spec}})
	if f := res.Fault(); f != nil {
		bf, ok := f.Detail.Fault.(types.BaseMethodFault)
		if !ok {
			bf = &types.InvalidRequest{}
		}
		return nil, bf
	}
	objects := res.(*methods.RetrievePropertiesExBody).Res.Returnval.Objects
	return slices.DeleteFunc(objects, func(o types.ObjectContent) bool { return pc.v.watch.isGoing(o.Obj) }), nil
}
