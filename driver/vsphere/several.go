package vsphere

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/csilab/csilab/driver/controller"
	"github.com/csilab/csilab/driver/record"
)

// Service is the vSphere side of the controller service with its life.
type Service interface {
	controller.Backend
	Probe(ctx context.Context) error
	Close(ctx context.Context) error
}

// only gives the configuration of one of the vCenters. Where there is one
// alone, it may change its host.
func (c Config) only(host string, several bool) (Config, bool) {
	all := append([]VCenter{c.VCenter}, c.Others...)
	c.Others = nil
	if !several && len(all) == 1 {
		return c, true
	}
	i := slices.IndexFunc(all, func(v VCenter) bool { return v.Host == host })
	if i < 0 {
		return c, false
	}
	c.VCenter = all[i]
	return c, true
}

// NewSeveral returns a backend for all vCenters of the configuration. With one
// it is New's.
func NewSeveral(ctx context.Context, opt Options) (Service, error) {
	c := opt.Config
	if len(c.Others) == 0 {
		return New(ctx, opt)
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("vsphere: %w", err)
	}
	m, err := newMetrics(opt.Registerer)
	if err != nil {
		return nil, fmt.Errorf("vsphere: %w", err)
	}
	s := &several{records: opt.Records, homes: map[string]*Backend{}}
	for _, v := range append([]VCenter{c.VCenter}, c.Others...) {
		one := opt
		one.Config, _ = c.only(v.Host, true)
		b, err := newBackend(ctx, one, m)
		if err != nil {
			s.Close(ctx)
			return nil, err
		}
		b.several = true
		s.all = append(s.all, b)
	}
	return s, nil
}

// several is a backend over several vCenters: a volume lies on one of them,
// with its snapshots and what is restored from them, and is attached to VMs
// there. A vCenter that is away takes nothing from the others; but what can't
// be found on those that answer may be on it, so nothing counts as gone then.
type several struct {
	all     []*Backend
	records record.Store

	mu    sync.Mutex
	homes map[string]*Backend // where volumes were seen last, by id in lower case
}

// Probe is ready once one vCenter has let the driver in.
func (s *several) Probe(ctx context.Context) error {
	errs := s.each(ctx, func(ctx context.Context, b *Backend) (bool, error) { return true, b.Probe(ctx) })
	var all []error
	for _, e := range errs {
		if e == nil {
			return nil
		}
		all = append(all, e)
	}
	return errors.Join(all...)
}

// Close closes all.
func (s *several) Close(ctx context.Context) error {
	errs := make([]error, len(s.all))
	var wg sync.WaitGroup
	for i, b := range s.all {
		wg.Go(func() { errs[i] = b.Close(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

var errNotAsked = errors.New("not asked to the end")

// each runs f on all vCenters side by side, and returns their errors in the
// order of the configuration. Once f has said that its answer is enough, the
// others are no longer waited for: those have errNotAsked.
func (s *several) each(ctx context.Context, f func(ctx context.Context, b *Backend) (enough bool, err error)) []error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		i      int
		enough bool
		err    error
	}
	answers := make(chan answer, len(s.all))
	for i, b := range s.all {
		go func() {
			enough, err := f(ctx, b)
			answers <- answer{i, enough, err}
		}()
	}
	errs := make([]error, len(s.all))
	for i := range errs {
		errs[i] = errNotAsked
	}
	for range s.all {
		a := <-answers
		errs[a.i] = a.err
		if a.err == nil && a.enough {
			break
		}
	}
	return errs
}

func (s *several) host(host string) *Backend {
	for _, b := range s.all {
		if b.conf().VCenter.Host == host {
			return b
		}
	}
	return nil
}

// recorded is the vCenter on which an operation on a subject has begun, or nil.
func (s *several) recorded(ctx context.Context, subject string) (*Backend, error) {
	r, err := s.records.Get(ctx, subject)
	switch {
	case errors.Is(err, record.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, recordError(err)
	}
	return s.host(r.Backend), nil
}

func (s *several) remember(id string, b *Backend) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id = strings.ToLower(id)
	if b == nil {
		delete(s.homes, id)
	} else {
		s.homes[id] = b
	}
}

// home finds the vCenter that has a volume: nil when none has. It is an error
// when a vCenter doesn't answer that may have it.
func (s *several) home(ctx context.Context, id string) (*Backend, error) {
	if !isUUID(id) {
		return nil, nil
	}
	if b, err := s.recorded(ctx, volumeKey(id)); b != nil || err != nil {
		return b, err
	}
	s.mu.Lock()
	b := s.homes[strings.ToLower(id)]
	s.mu.Unlock()
	if b != nil {
		return b, nil
	}
	var mu sync.Mutex
	errs := s.each(ctx, func(ctx context.Context, x *Backend) (bool, error) {
		ctx, leave := x.enter(ctx)
		defer leave()
		v, err := x.find(ctx, id)
		if v == nil {
			return false, err
		}
		mu.Lock()
		defer mu.Unlock()
		b = x
		return true, nil
	})
	mu.Lock()
	defer mu.Unlock()
	if b != nil {
		s.remember(id, b)
		return b, nil
	}
	for _, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("volume %s is on no vCenter that answers: %w", id, err)
		}
	}
	return nil, nil
}

// CreateVolume implements controller.Backend. The vCenter is, in this order,
// the one where the creation of this name has begun, the source's, one that has
// a volume of this name, and the first that has room in the asked topology, the
// preferred segments first.
func (s *several) CreateVolume(ctx context.Context, r controller.CreateVolume) (controller.Volume, error) {
	name := volumeName(r.Name)
	if len(r.Preferred)+len(r.Requisite) == 0 {
		return controller.Volume{}, controller.Errorf(controller.Invalid, "no topology is asked for: with several vCenters a volume needs it to find its place")
	}
	b, err := s.recorded(ctx, createKey(name))
	if err != nil {
		return controller.Volume{}, err
	}
	if b == nil && r.Snapshot != "" {
		vol, _, ok := splitSnapshotID(r.Snapshot)
		if ok {
			b, err = s.home(ctx, vol)
		}
		if err != nil {
			return controller.Volume{}, err
		}
		if b == nil {
			return controller.Volume{}, controller.Errorf(controller.NotFound, "source snapshot %q doesn't exist", r.Snapshot)
		}
	}
	if b == nil {
		b = s.named(ctx, name)
	}
	if b != nil {
		v, err := b.CreateVolume(ctx, r)
		if err == nil {
			s.remember(v.ID, b)
		}
		// What was begun there and is refused now may go elsewhere, unless its
		// source or a volume of its name holds it.
		if err == nil || r.Snapshot != "" || !elsewhere(err) {
			return v, err
		}
	}
	order, err := s.order(ctx, slices.Concat(r.Preferred, r.Requisite))
	if err != nil {
		return controller.Volume{}, err
	}
	var errs []error
	for _, b := range order {
		v, err := b.CreateVolume(ctx, r)
		if err == nil {
			s.remember(v.ID, b)
			return v, nil
		}
		errs = append(errs, fmt.Errorf("vCenter %s: %w", b.conf().VCenter.Host, err))
		if elsewhere(err) {
			continue
		}
		// A vCenter that is away and has not been asked for anything.
		if begun, rerr := s.recorded(ctx, createKey(name)); controller.KindOf(err) == controller.Unavailable && begun == nil && rerr == nil && ctx.Err() == nil {
			continue
		}
		return v, err
	}
	// One that is away may yet have room: that error is worth a retry.
	for _, err := range errs {
		if !elsewhere(err) {
			return controller.Volume{}, err
		}
	}
	for _, err := range errs {
		if controller.KindOf(err) == controller.Exhausted {
			return controller.Volume{}, controller.Errorf(controller.Exhausted, "no vCenter has a place: %w", errors.Join(errs...))
		}
	}
	return controller.Volume{}, errs[0]
}

// elsewhere says that another vCenter may take what this one refused: it has no
// room in the topology, or not the datastore or policy that is named.
func elsewhere(err error) bool {
	k := controller.KindOf(err)
	return k == controller.Exhausted || k == controller.Invalid
}

// nameWait is how long a vCenter may take to say whether it has a volume of a
// name, once another has answered. One that is away has begun nothing that is
// not on record.
const nameWait = 3 * time.Second

// named finds the vCenter that has a volume of this cluster and name.
func (s *several) named(ctx context.Context, name string) *Backend {
	ctx, cancel := context.WithTimeout(ctx, nameWait)
	defer cancel()
	var mu sync.Mutex
	var has *Backend
	s.each(ctx, func(ctx context.Context, b *Backend) (bool, error) {
		ctx, leave := b.enter(ctx)
		defer leave()
		v, err := b.named(ctx, name)
		if v == nil {
			return false, err
		}
		mu.Lock()
		defer mu.Unlock()
		has = b
		return true, nil
	})
	mu.Lock()
	defer mu.Unlock()
	return has
}

// order sorts the vCenters by the first of the segments that they have hosts
// in. Those whose hosts can't be read now come after, in the order of the
// configuration; those without a host in any segment are last, for their reasons.
//
// It is an error when the most preferred segment is on none that answers, while
// another doesn't: it is there, most likely. A volume elsewhere would be within
// the request, but out of the reach of the node that the pod was scheduled to,
// and stay so for good when the outage is over.
func (s *several) order(ctx context.Context, segments []map[string]string) ([]*Backend, error) {
	ctx, cancel := context.WithTimeout(ctx, nameWait)
	defer cancel()
	const unknown, nowhere = 1 << 20, 1 << 21
	rank := map[*Backend]int{}
	var mu sync.Mutex
	for _, b := range s.all {
		rank[b] = unknown
	}
	errs := s.each(ctx, func(ctx context.Context, b *Backend) (bool, error) {
		ctx, leave := b.enter(ctx)
		defer leave()
		_, hosts, err := b.storage(ctx)
		if err != nil {
			return false, err
		}
		zones, err := b.zones(ctx, hosts)
		if err != nil {
			return false, err
		}
		mu.Lock()
		defer mu.Unlock()
		rank[b] = nowhere
		for i, seg := range segments {
			if slices.ContainsFunc(hosts, func(h host) bool { return matches(zones[h.ref], seg) }) {
				rank[b] = i
				break
			}
		}
		return false, nil
	})
	mu.Lock()
	defer mu.Unlock()
	out := slices.Clone(s.all)
	slices.SortStableFunc(out, func(a, b *Backend) int { return rank[a] - rank[b] })
	if rank[out[0]] > 0 {
		for i, err := range errs {
			if err != nil {
				return nil, controller.Errorf(controller.Unavailable, "vCenter %s, which may have %s, doesn't answer: %w", s.all[i].conf().VCenter.Host, segmentText(segments[0]), err)
			}
		}
	}
	return out, nil
}

// DeleteVolume implements controller.Backend.
func (s *several) DeleteVolume(ctx context.Context, id string) error {
	b, err := s.home(ctx, id)
	if b == nil {
		return err
	}
	if err := b.DeleteVolume(ctx, id); err != nil {
		return err
	}
	s.remember(id, nil)
	return nil
}

// Volume implements controller.Backend.
func (s *several) Volume(ctx context.Context, id string) (controller.Volume, error) {
	b, err := s.home(ctx, id)
	switch {
	case err != nil:
		return controller.Volume{}, err
	case b == nil:
		return controller.Volume{}, notFound(id)
	}
	v, err := b.Volume(ctx, id)
	if controller.KindOf(err) == controller.NotFound {
		s.remember(id, nil)
	}
	return v, err
}

// Nodes implements controller.Backend.
func (s *several) Nodes(ctx context.Context, volume string) ([]string, error) {
	b, err := s.home(ctx, volume)
	if b == nil {
		return nil, err
	}
	return b.Nodes(ctx, volume)
}

// pages goes through the vCenters one by one. A token is the vCenter's number
// and its own token. All must answer: a list with holes would pass for the
// whole, and what is missing for gone.
func pages[T any](s *several, p controller.Page, get func(b *Backend, p controller.Page) ([]T, string, error)) (out []T, next string, err error) {
	at := 0
	if p.Token != "" {
		n, rest, ok := strings.Cut(p.Token, "/")
		at, err = strconv.Atoi(n)
		if !ok || err != nil || at < 0 || at >= len(s.all) {
			return nil, "", controller.Errorf(controller.Aborted, "starting_token %q: not one that this driver gave", p.Token)
		}
		p.Token = rest
	}
	most := p.Max
	for ; at < len(s.all); at++ {
		if most > 0 {
			if p.Max = most - len(out); p.Max == 0 {
				return out, strconv.Itoa(at) + "/", nil
			}
		}
		page, token, err := get(s.all[at], p)
		if err != nil {
			return nil, "", err
		}
		out = append(out, page...)
		if token != "" {
			return out, strconv.Itoa(at) + "/" + token, nil
		}
		p.Token = ""
	}
	return out, "", nil
}

// Volumes implements controller.Backend.
func (s *several) Volumes(ctx context.Context, p controller.Page) ([]controller.Volume, string, error) {
	return pages(s, p, func(b *Backend, p controller.Page) ([]controller.Volume, string, error) {
		vs, next, err := b.Volumes(ctx, p)
		for _, v := range vs {
			s.remember(v.ID, b)
		}
		return vs, next, err
	})
}

// Abilities implements controller.Backend.
func (s *several) Abilities() controller.Abilities { return abilities }

// Attach implements controller.Backend.
func (s *several) Attach(ctx context.Context, r controller.Attach) (map[string]string, error) {
	volume := r.Volume
	b, err := s.home(ctx, volume)
	switch {
	case err != nil:
		return nil, err
	case b == nil:
		return nil, notFound(volume)
	}
	m, err := b.Attach(ctx, r)
	if controller.KindOf(err) == controller.NotFound {
		s.remember(volume, nil)
		return nil, controller.Errorf(controller.NotFound, "vCenter %s, where volume %s lies: %w", b.conf().VCenter.Host, volume, err)
	}
	return m, err
}

// Detach implements controller.Backend. A volume that CNS knows nowhere may
// still be a disk of a VM: every vCenter is asked then.
func (s *several) Detach(ctx context.Context, volume, node string) error {
	b, err := s.home(ctx, volume)
	switch {
	case err != nil:
		return err
	case b != nil:
		return b.Detach(ctx, volume, node)
	}
	return errors.Join(s.each(ctx, func(ctx context.Context, b *Backend) (bool, error) { return false, b.Detach(ctx, volume, node) })...)
}

// Expand implements controller.Backend.
func (s *several) Expand(ctx context.Context, volume string, size int64) (int64, error) {
	b, err := s.home(ctx, volume)
	switch {
	case err != nil:
		return 0, err
	case b == nil:
		return 0, notFound(volume)
	}
	return b.Expand(ctx, volume, size)
}

// CreateSnapshot implements controller.Backend.
func (s *several) CreateSnapshot(ctx context.Context, r controller.CreateSnapshot) (controller.Snapshot, error) {
	volume := r.Volume
	b, err := s.home(ctx, volume)
	switch {
	case err != nil:
		return controller.Snapshot{}, err
	case b == nil:
		return controller.Snapshot{}, controller.Errorf(controller.NotFound, "source volume %q doesn't exist", volume)
	}
	return b.CreateSnapshot(ctx, r)
}

// DeleteSnapshot implements controller.Backend.
func (s *several) DeleteSnapshot(ctx context.Context, id string) error {
	volume, _, ok := splitSnapshotID(id)
	if !ok {
		return nil
	}
	b, err := s.home(ctx, volume)
	if b == nil {
		return err
	}
	return b.DeleteSnapshot(ctx, id)
}

// Snapshots implements controller.Backend.
func (s *several) Snapshots(ctx context.Context, f controller.SnapshotFilter, p controller.Page) ([]controller.Snapshot, string, error) {
	volume := f.Volume
	if v, _, ok := splitSnapshotID(f.ID); ok {
		volume = v
	}
	if volume != "" || f.ID != "" {
		b, err := s.home(ctx, volume)
		if b == nil {
			return nil, "", err
		}
		return b.Snapshots(ctx, f, p)
	}
	return pages(s, p, func(b *Backend, p controller.Page) ([]controller.Snapshot, string, error) {
		return b.Snapshots(ctx, f, p)
	})
}

// Capacity implements controller.Backend: the sum of what the vCenters have
// that answer, for a volume may go to any of them.
func (s *several) Capacity(ctx context.Context, parameters, segment map[string]string) (controller.Capacity, error) {
	var mu sync.Mutex
	var sum controller.Capacity
	errs := s.each(ctx, func(ctx context.Context, b *Backend) (bool, error) {
		c, err := b.Capacity(ctx, parameters, segment)
		mu.Lock()
		defer mu.Unlock()
		sum.Available += c.Available
		sum.MaxVolume = max(sum.MaxVolume, c.MaxVolume)
		return false, err
	})
	for _, err := range errs {
		if err == nil {
			return sum, nil
		}
	}
	return controller.Capacity{}, errs[0]
}

var _ Service = (*several)(nil)
