// Package store is the API server of the simulated control plane: typed
// Kubernetes objects in memory with the semantics that controllers depend on:
// resource versions and conflicts, uids, generated names, finalizers and
// deletion timestamps, a status that only a status update changes, and watches
// that miss nothing.
package store

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/hpev1"
	"github.com/csilab/csilab/sim/ledger"
)

// Object is a Kubernetes object.
type Object interface {
	metav1.Object
	runtime.Object
}

// kindInfo says how a kind is addressed.
type kindInfo struct {
	kind       string
	resource   schema.GroupResource
	gvk        schema.GroupVersionKind
	namespaced bool
}

var kinds = map[reflect.Type]kindInfo{}

var _ = registerAll()

func register[T any](gv schema.GroupVersion, resource string, namespaced bool) {
	t := reflect.TypeFor[T]()
	kinds[t] = kindInfo{kind: t.Name(), resource: schema.GroupResource{Group: gv.Group, Resource: resource},
		gvk: gv.WithKind(t.Name()), namespaced: namespaced}
}

// registerAll runs before every init function of the package.
func registerAll() struct{} {
	core, storage := corev1.SchemeGroupVersion, storagev1.SchemeGroupVersion
	register[corev1.Namespace](core, "namespaces", false)
	register[corev1.Node](core, "nodes", false)
	register[corev1.Pod](core, "pods", true)
	register[corev1.PersistentVolume](core, "persistentvolumes", false)
	register[corev1.PersistentVolumeClaim](core, "persistentvolumeclaims", true)
	register[corev1.Secret](core, "secrets", true)
	register[corev1.Event](core, "events", true)
	register[storagev1.StorageClass](storage, "storageclasses", false)
	register[storagev1.VolumeAttachment](storage, "volumeattachments", false)
	register[storagev1.CSINode](storage, "csinodes", false)
	register[storagev1.CSIDriver](storage, "csidrivers", false)
	register[storagev1.CSIStorageCapacity](storage, "csistoragecapacities", true)
	register[coordinationv1.Lease](coordinationv1.SchemeGroupVersion, "leases", true)
	register[hpev1.HPENodeInfo](hpev1.SchemeGroupVersion, "hpenodeinfos", false)
	snap := snapshotv1.SchemeGroupVersion
	register[snapshotv1.VolumeSnapshot](snap, "volumesnapshots", true)
	register[snapshotv1.VolumeSnapshotClass](snap, "volumesnapshotclasses", false)
	register[snapshotv1.VolumeSnapshotContent](snap, "volumesnapshotcontents", false)
	return struct{}{}
}

func infoOf(t reflect.Type) kindInfo {
	k, ok := kinds[t]
	if !ok {
		panic(fmt.Sprintf("store: kind %v is not registered", t))
	}
	return k
}

func infoFor(o Object) kindInfo { return infoOf(reflect.TypeOf(o).Elem()) }

// KindOf is the kind of an object, e.g. "PersistentVolumeClaim".
func KindOf(o Object) string { return infoFor(o).kind }

// Key is namespace/name, or name for a cluster-scoped object.
func Key(o Object) string { return key(o.GetNamespace(), o.GetName()) }

func key(ns, name string) string {
	if ns == "" {
		return name
	}
	return ns + "/" + name
}

// EventType is what happened to an object.
type EventType string

// The event types.
const (
	Added    EventType = "ADDED"
	Modified EventType = "MODIFIED"
	Deleted  EventType = "DELETED"
)

// Event is a change. Object is shared by all who hear of it and must not be
// changed, as with an informer.
type Event struct {
	Type   EventType
	Kind   string
	Object Object
}

// Store is safe for concurrent use. Use New.
type Store struct {
	mu      sync.Mutex
	rv      uint64
	seed    uint64
	uids    map[string]int
	objects view // kind -> key -> object
	indexes indexSet
	watches map[*Watch]struct{}
	cuts    map[string]*cut // by actor
	in      *fault.Interceptor

	fleeting []fleeting // Event objects, by the time that they go
}

// New returns an empty store. Uids are a pure function of seed, kind, name and
// occurrence. in may be nil.
func New(seed uint64, in *fault.Interceptor) *Store {
	return &Store{seed: seed, uids: map[string]int{}, objects: view{}, indexes: indexSet{}, watches: map[*Watch]struct{}{}, cuts: map[string]*cut{}, in: in}
}

// Client is the store as one actor sees it: each of its calls passes the hop
// kube under the actor's name.
type Client struct {
	s      *Store
	actor  string
	fenced atomic.Bool
}

// Await holds what this client's actor is about to do until it is its turn; see
// fault.Interceptor.
func (c *Client) Await(ctx context.Context, what, about string) {
	c.s.in.Await(ctx, fault.Call{Hop: ledger.Kube, Op: what, Component: c.actor, Volume: about})
}

// Fence makes every later write of this client fail: its actor has crashed.
func (c *Client) Fence() { c.fenced.Store(true) }

// Client returns a client for an actor, e.g. "csi-provisioner" or "kubelet@node-1".
func (s *Store) Client(actor string) *Client { return &Client{s: s, actor: actor} }

// Actor is the name that the client acts under.
func (c *Client) Actor() string { return c.actor }

type reasonKey struct{}

// Because says why the writes with a context are made: the ledger tells it with
// the request.
func Because(ctx context.Context, reason string) context.Context {
	return context.WithValue(ctx, reasonKey{}, reason)
}

func (c *Client) do(ctx context.Context, verb string, k kindInfo, o Object, op func() error) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if c.fenced.Load() {
		return fault.ErrCrashed
	}
	call := fault.Call{Hop: ledger.Kube, Op: verb + " " + k.resource.Resource, Component: c.actor, Request: Key(o)}
	if reason, ok := ctx.Value(reasonKey{}).(string); ok {
		call.Request += " " + reason
	}
	switch x := o.(type) {
	case *corev1.PersistentVolume, *corev1.PersistentVolumeClaim:
		call.Volume = Key(o)
	case *snapshotv1.VolumeSnapshot, *snapshotv1.VolumeSnapshotContent:
		call.Snapshot = Key(o)
	case *corev1.Node, *storagev1.CSINode, *coordinationv1.Lease:
		call.Node = o.GetName()
	case *corev1.Pod:
		call.Node = x.Spec.NodeName
	case *storagev1.VolumeAttachment:
		call.Node = x.Spec.NodeName
		if pv := x.Spec.Source.PersistentVolumeName; pv != nil {
			call.Volume = *pv
		}
	}
	return c.s.in.Do(ctx, call, func(context.Context) error {
		if c.fenced.Load() { // crashed while a rule held the call
			return fault.ErrCrashed
		}
		return op()
	})
}

// ptr ties a type to its pointer's methods.
type ptr[T any] interface {
	*T
	Object
}

// Get returns a copy of an object, or a NotFound StatusError. Reads do not
// pass the hop (informers answer them in a real controller).
func Get[T any, P ptr[T]](c *Client, ns, name string) (P, error) {
	o, err := See[T, P](c, ns, name)
	if err != nil {
		return nil, err
	}
	return o.DeepCopyObject().(P), nil
}

// See is Get without the copy, as a lister of client-go: the object is shared and
// must not be changed.
func See[T any, P ptr[T]](c *Client, ns, name string) (P, error) {
	k := infoOf(reflect.TypeFor[T]())
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.expire()
	o, ok := c.s.objectsOf(c.actor)[k.kind][key(ns, name)]
	if !ok {
		return nil, apierrors.NewNotFound(k.resource, name)
	}
	return o.(P), nil
}

// List returns copies of the objects of a namespace ("" is all), by key.
func List[T any, P ptr[T]](c *Client, ns string) []P {
	k := infoOf(reflect.TypeFor[T]())
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.expire()
	var out []P
	for _, o := range c.s.objectsOf(c.actor)[k.kind] {
		if ns == "" || o.GetNamespace() == ns {
			out = append(out, o.DeepCopyObject().(P))
		}
	}
	slices.SortFunc(out, func(a, b P) int { return cmp.Compare(Key(a), Key(b)) })
	return out
}

// Create stores a copy of o and writes the stored metadata back into o, also the
// name that SetName makes; an error leaves o without that name.
// Errors: AlreadyExists, Invalid (no name), BadRequest (a namespace out of place).
func (c *Client) Create(ctx context.Context, o Object) error {
	given := o.GetName()
	err := c.create(ctx, o)
	if err != nil {
		o.SetName(given)
	}
	return err
}

func (c *Client) create(ctx context.Context, o Object) error {
	k := infoFor(o)
	if k.namespaced && o.GetNamespace() == "" {
		o.SetNamespace("default")
	}
	c.SetName(o)
	return c.do(ctx, "create", k, o, func() error {
		s := c.s
		s.mu.Lock()
		defer s.mu.Unlock()
		s.expire()
		if !k.namespaced && o.GetNamespace() != "" {
			return apierrors.NewBadRequest(fmt.Sprintf("metadata.namespace: %s %q is cluster-scoped, the namespace must be empty, not %q", k.kind, o.GetName(), o.GetNamespace()))
		}
		if o.GetName() == "" {
			return apierrors.NewInvalid(k.gvk.GroupKind(), "", field.ErrorList{field.Required(field.NewPath("metadata", "name"), "name or generateName is required")})
		}
		ky := Key(o)
		if _, ok := s.objects[k.kind][ky]; ok {
			if o.GetGenerateName() != "" { // apiserver pkg/registry/rest/create.go CheckGeneratedNameError
				return apierrors.NewGenerateNameConflict(k.resource, o.GetName(), 1)
			}
			return apierrors.NewAlreadyExists(k.resource, o.GetName())
		}
		o.SetUID(types.UID(s.uid(k.kind, ky)))
		o.SetCreationTimestamp(metav1.NewTime(time.Now()))
		o.SetDeletionTimestamp(nil)
		o.SetDeletionGracePeriodSeconds(nil)
		o.SetGeneration(1)
		prepareForCreate(o)
		o.GetObjectKind().SetGroupVersionKind(k.gvk)
		st := o.DeepCopyObject().(Object)
		s.put(Added, k, st)
		o.SetResourceVersion(st.GetResourceVersion())
		return nil
	})
}

// uid returns a UUID that depends on seed, kind, key and occurrence only.
func (s *Store) uid(kind, key string) string {
	s.uids[kind+"|"+key]++
	return deterministicUUID(s.seed, kind, key, s.uids[kind+"|"+key])
}

// put stores o itself under the next resource version and tells the watches: from
// here on nobody may change it.
func (s *Store) put(t EventType, k kindInfo, o Object) {
	s.rv++
	o.SetResourceVersion(strconv.FormatUint(s.rv, 10))
	if s.objects[k.kind] == nil {
		s.objects[k.kind] = map[string]Object{}
	}
	ky := Key(o)
	old, next := s.objects[k.kind][ky], o
	if t == Deleted {
		next = nil
		delete(s.objects[k.kind], ky)
	} else {
		s.objects[k.kind][ky] = o
		if k.kind == eventKind {
			s.fleeting = append(s.fleeting, fleeting{ky, o.GetResourceVersion(), time.Now().Add(EventTTL)})
		}
	}
	s.indexes.move(k.kind, old, next)
	for w := range s.watches {
		w.push(t, k.kind, o)
	}
}

// Update replaces metadata and spec (the status stays as stored, for kinds
// that have one). The object goes away when its deletion is pending and no
// finalizer is left. Errors: NotFound, Conflict (another resource version).
func (c *Client) Update(ctx context.Context, o Object) error { return c.update(ctx, o, false) }

// UpdateStatus replaces the status only.
func (c *Client) UpdateStatus(ctx context.Context, o Object) error { return c.update(ctx, o, true) }

func (c *Client) update(ctx context.Context, o Object, statusOnly bool) error {
	k := infoFor(o)
	verb := "update"
	if statusOnly {
		verb = "update-status"
	}
	return c.do(ctx, verb, k, o, func() error {
		s := c.s
		s.mu.Lock()
		defer s.mu.Unlock()
		s.expire()
		old, ok := s.objects[k.kind][Key(o)]
		if !ok {
			return apierrors.NewNotFound(k.resource, o.GetName())
		}
		if o.GetUID() != "" && o.GetUID() != old.GetUID() { // another object of the same name
			return apierrors.NewConflict(k.resource, o.GetName(), fmt.Errorf("precondition failed: UID in precondition: %v, UID in object meta: %v", o.GetUID(), old.GetUID()))
		}
		if rv := o.GetResourceVersion(); rv != "" && rv != old.GetResourceVersion() {
			return apierrors.NewConflict(k.resource, o.GetName(), fmt.Errorf("the object has been modified; please apply your changes to the latest version and try again"))
		}
		next := o.DeepCopyObject().(Object)
		if statusOnly {
			status := next
			next = shallow(old)
			shareStatus(next, status)
			prepareForStatusUpdate(next, old)
		} else {
			shareStatus(next, old)
			next.SetDeletionTimestamp(old.GetDeletionTimestamp())
			next.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
			next.SetCreationTimestamp(old.GetCreationTimestamp())
			next.SetUID(old.GetUID())
			next.SetGeneration(old.GetGeneration())
			if !specEqual(old, next) {
				next.SetGeneration(old.GetGeneration() + 1)
			}
			if old.GetDeletionTimestamp() != nil {
				// apimachinery pkg/api/validation/objectmeta.go:342
				for _, f := range next.GetFinalizers() {
					if !slices.Contains(old.GetFinalizers(), f) {
						return apierrors.NewInvalid(k.gvk.GroupKind(), o.GetName(), field.ErrorList{field.Forbidden(field.NewPath("metadata", "finalizers"),
							fmt.Sprintf("no new finalizers can be added if the object is being deleted, found new finalizers %#v", []string{f}))})
					}
				}
			}
		}
		next.GetObjectKind().SetGroupVersionKind(k.gvk)
		next.SetResourceVersion(old.GetResourceVersion())
		if equality.Semantic.DeepEqual(next, old) {
			assign(o, old)
			return nil // as in a real API server: no change, no event
		}
		if next.GetDeletionTimestamp() != nil && len(next.GetFinalizers()) == 0 && !waitsForKubelet(next) {
			s.put(Deleted, k, next)
		} else {
			s.put(Modified, k, next)
		}
		assign(o, next)
		return nil
	})
}

// Delete marks an object for deletion; without finalizers it goes at once. A
// pod that has a node goes when its kubelet confirms by DeleteNow, unless its
// grace period is 0. uid "" matches any. Errors: NotFound, Conflict (another uid).
func (c *Client) Delete(ctx context.Context, o Object) error { return c.delete(ctx, o, false) }

// DeleteNow deletes with grace period 0: what a kubelet does when a pod has
// ended and a user by force. Finalizers still hold.
func (c *Client) DeleteNow(ctx context.Context, o Object) error { return c.delete(ctx, o, true) }

func (c *Client) delete(ctx context.Context, o Object, now bool) error {
	k := infoFor(o)
	return c.do(ctx, "delete", k, o, func() error {
		s := c.s
		s.mu.Lock()
		defer s.mu.Unlock()
		s.expire()
		old, ok := s.objects[k.kind][Key(o)]
		if !ok {
			return apierrors.NewNotFound(k.resource, o.GetName())
		}
		if o.GetUID() != "" && o.GetUID() != old.GetUID() {
			return apierrors.NewConflict(k.resource, o.GetName(), fmt.Errorf("the UID in the precondition (%s) does not match the UID in record (%s)", o.GetUID(), old.GetUID()))
		}
		next := shallow(old)
		grace := int64(0)
		if p, ok := next.(*corev1.Pod); ok && !now {
			grace = podGrace(p)
		}
		switch {
		case grace == 0 && len(next.GetFinalizers()) == 0:
			s.put(Deleted, k, next)
		case next.GetDeletionTimestamp() == nil, grace < ptrOr(next.GetDeletionGracePeriodSeconds(), 0):
			// The timestamp is when the grace period ends: apiserver
			// pkg/registry/rest/delete.go BeforeDelete.
			t := metav1.NewTime(time.Now().Add(time.Duration(grace) * time.Second))
			next.SetDeletionTimestamp(&t)
			next.SetDeletionGracePeriodSeconds(&grace)
			s.put(Modified, k, next)
		}
		return nil
	})
}

// podGrace is how many seconds a pod has to end: 0 before it has a node and
// after it has ended. Source: k8s v1.37.2 pkg/registry/core/pod/strategy.go
// CheckGracefulDelete.
func podGrace(p *corev1.Pod) int64 {
	if p.Spec.NodeName == "" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return 0
	}
	return ptrOr(p.Spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
}

// waitsForKubelet says whether an object that is being deleted stays until
// DeleteNow: its deletion has a grace period left to run.
func waitsForKubelet(o Object) bool { return ptrOr(o.GetDeletionGracePeriodSeconds(), 0) > 0 }

func ptrOr(p *int64, or int64) int64 {
	if p == nil {
		return or
	}
	return *p
}

// Modify reads an object, lets f change it and updates metadata and spec;
// conflicts are retried with the newest version. f's error ends it.
func Modify[T any, P ptr[T]](ctx context.Context, c *Client, ns, name string, f func(P) error) (P, error) {
	return modify[T, P](ctx, c, ns, name, f, c.Update)
}

// ModifyStatus is Modify for the status.
func ModifyStatus[T any, P ptr[T]](ctx context.Context, c *Client, ns, name string, f func(P) error) (P, error) {
	return modify[T, P](ctx, c, ns, name, f, c.UpdateStatus)
}

func modify[T any, P ptr[T]](ctx context.Context, c *Client, ns, name string, f func(P) error, up func(context.Context, Object) error) (P, error) {
	for {
		o, err := Get[T, P](c, ns, name)
		if err != nil {
			return nil, err
		}
		if err := f(o); err != nil {
			return nil, err
		}
		err = up(ctx, o)
		if apierrors.IsConflict(err) {
			continue
		}
		return o, err
	}
}

// Event records an Event object about o, as client-go's recorder does; equal
// events are counted.
func (c *Client) Event(ctx context.Context, o Object, eventType, reason, format string, args ...any) {
	msg := fmt.Sprintf(format, args...)
	ns := o.GetNamespace()
	if ns == "" {
		ns = "default"
	}
	k := infoFor(o)
	name := fmt.Sprintf("%s.%s", o.GetName(), deterministicUUID(0, eventType+reason+c.actor, k.kind+string(o.GetUID())+msg, 0)[:16])
	if _, err := Modify(ctx, c, ns, name, func(e *corev1.Event) error {
		e.Count++
		e.LastTimestamp = metav1.NewTime(time.Now())
		return nil
	}); err == nil {
		return
	}
	now := metav1.NewTime(time.Now())
	_ = c.Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: ns, Name: name},
		InvolvedObject: corev1.ObjectReference{Kind: k.kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), APIVersion: k.gvk.GroupVersion().String()},
		Type:           eventType, Reason: reason, Message: msg, Count: 1,
		FirstTimestamp: now, LastTimestamp: now, Source: corev1.EventSource{Component: c.actor},
	})
}

// Watch is a stream of events. It starts with an Added event for all that is
// there, and never drops one.
type Watch struct {
	kinds map[string]bool
	mu    sync.Mutex
	q     []Event
	sig   chan struct{}
	still bool              // only that something changed counts
	keep  func(Object) bool // nil: all
}

func (w *Watch) push(t EventType, kind string, o Object) {
	if len(w.kinds) > 0 && !w.kinds[kind] || w.keep != nil && !w.keep(o) {
		return
	}
	if !w.still {
		w.mu.Lock()
		w.q = append(w.q, Event{t, kind, o})
		w.mu.Unlock()
	}
	select {
	case w.sig <- struct{}{}:
	default:
	}
}

// Watch reports the changes of the given kinds (none: of all), e.g. "Pod",
// until ctx ends; then the channel closes.
func (c *Client) Watch(ctx context.Context, kind ...string) <-chan Event {
	return c.watch(ctx, nil, kind)
}

// WatchOnly is Watch for the objects that keep holds for, as a field selector
// chooses them: keep must depend on what never changes once it holds, and must
// not change the object or call back.
func (c *Client) WatchOnly(ctx context.Context, keep func(Object) bool, kind ...string) <-chan Event {
	return c.watch(ctx, keep, kind)
}

func (c *Client) watch(ctx context.Context, keep func(Object) bool, kind []string) <-chan Event {
	s := c.s
	var w *Watch
	join := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		w = s.listen(kind)
		w.keep = keep
		for _, kn := range slices.Sorted(mapKeys(s.objects)) {
			if len(w.kinds) > 0 && !w.kinds[kn] {
				continue
			}
			for _, ky := range slices.Sorted(mapKeys(s.objects[kn])) {
				w.push(Added, kn, s.objects[kn][ky])
			}
		}
	}
	// One that is cut off has nothing to list before that ends.
	apart := s.reach(c.actor)
	if apart == nil {
		join()
	}
	out := make(chan Event)
	go func() {
		defer close(out)
		if apart != nil {
			select {
			case <-apart:
			case <-ctx.Done():
				return
			}
			join()
		}
		defer s.unlisten(w)
		for {
			if away := s.reach(c.actor); away != nil {
				select {
				case <-away:
				case <-ctx.Done():
					return
				}
				continue
			}
			w.mu.Lock()
			q := w.q
			w.q = nil
			w.mu.Unlock()
			for _, e := range q {
				if ctx.Err() != nil { // what nobody hears of takes no turn
					return
				}
				c.Await(ctx, "event "+e.Kind, Key(e.Object))
				select {
				case out <- e:
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-w.sig:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// listen registers a watch; the caller has the lock.
func (s *Store) listen(kinds []string) *Watch {
	w := &Watch{kinds: map[string]bool{}, sig: make(chan struct{}, 1)}
	for _, k := range kinds {
		w.kinds[k] = true
	}
	s.watches[w] = struct{}{}
	return w
}

func (s *Store) unlisten(w *Watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watches, w)
}

// Wait blocks until f returns true, looking again after each change of the
// kinds. f's error ends the wait; a context that ends gives its cause. Who has
// waited goes on when it is its turn; fault.About tells apart those that wait for
// the same kinds.
func (c *Client) Wait(ctx context.Context, f func() (bool, error), kind ...string) error {
	c.s.mu.Lock()
	w := c.s.listen(kind)
	w.still = true
	c.s.mu.Unlock()
	defer c.s.unlisten(w)
	waited := false
	goOn := func(err error) error {
		if waited { // the change is not over for all others that see it
			c.Await(ctx, "wait", strings.Join(kind, ","))
		}
		return err
	}
	for {
		if ok, err := f(); ok || err != nil {
			return goOn(err)
		}
		select {
		case <-w.sig:
			waited = true
		case <-ctx.Done():
			waited = true
			return goOn(context.Cause(ctx))
		}
	}
}

// SplitKey is the reverse of Key.
func SplitKey(k string) (ns, name string) {
	if ns, name, ok := strings.Cut(k, "/"); ok {
		return ns, name
	}
	return "", k
}
