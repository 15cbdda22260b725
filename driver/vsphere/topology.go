package vsphere

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/vapi/rest"
	"github.com/vmware/govmomi/vapi/tags"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/driver/controller"
)

// zoneTable holds the topology segment of each host, from the tags on it and
// on what it is in.
type zoneTable struct {
	read  time.Time
	hosts map[types.ManagedObjectReference]map[string]string
}

// zoneAge is how long a table is taken for true; tags change by hand.
const zoneAge = time.Minute

// zones returns the segment of each of the hosts. It is empty when no category
// is configured.
func (b *Backend) zones(ctx context.Context, hs []host) (map[types.ManagedObjectReference]map[string]string, error) {
	cats := b.conf().Topology
	if len(cats) == 0 {
		return nil, nil
	}
	var out map[types.ManagedObjectReference]map[string]string
	err := b.read(ctx, func(ctx context.Context, s *session) error {
		s.mu.Lock()
		t := s.zones
		s.mu.Unlock()
		if t != nil && time.Since(t.read) < zoneAge && !slices.ContainsFunc(hs, func(h host) bool { return t.hosts[h.ref] == nil }) {
			out = t.hosts
			return nil
		}
		tagged, err := b.tagged(ctx, s, cats)
		if err != nil {
			return err
		}
		t = &zoneTable{time.Now(), map[types.ManagedObjectReference]map[string]string{}}
		above := map[types.ManagedObjectReference]map[string]string{}
		for _, h := range hs {
			up, ok := above[h.parent]
			if !ok {
				up = map[string]string{}
				// From the root down: the nearest tag wins.
				line, err := mo.Ancestors(ctx, s.vim, property.DefaultCollector(s.vim).Reference(), h.parent)
				if err != nil {
					return err
				}
				for _, e := range line {
					maps.Copy(up, tagged[e.Self])
				}
				above[h.parent] = up
			}
			seg := maps.Clone(up)
			maps.Copy(seg, tagged[h.ref])
			t.hosts[h.ref] = seg
		}
		s.mu.Lock()
		s.zones = t
		s.mu.Unlock()
		out = t.hosts
		return nil
	})
	if err != nil {
		return nil, failf(err, "topology tags")
	}
	return out, nil
}

// tagged returns key and value by object for the tags of the categories. The
// session of the REST API idles out and ends by itself, apart from that of SOAP: it
// is made anew, once, and the other one stays.
func (b *Backend) tagged(ctx context.Context, s *session, cats []Category) (map[types.ManagedObjectReference]map[string]string, error) {
	for try := 1; ; try++ {
		c, err := s.rest(ctx)
		if err != nil {
			return nil, err
		}
		out, err := c.tagged(ctx, cats)
		if err == nil || !c.ended.Load() {
			return out, err
		}
		s.mu.Lock()
		if s.vapi == c {
			s.vapi = nil
		}
		s.mu.Unlock()
		if try == 2 {
			return nil, err
		}
	}
}

// rest is the client of the REST API that is logged in.
func (s *session) rest(ctx context.Context) (*restClient, error) {
	s.mu.Lock()
	c := s.vapi
	s.mu.Unlock()
	if c != nil {
		return c, nil
	}
	c = newRESTClient(s.vim)
	if err := c.Login(ctx, s.user); err != nil {
		if c.ended.Load() {
			err = newFault(types.InvalidLogin{}, "REST API: "+err.Error())
		}
		return nil, err
	}
	s.mu.Lock()
	s.vapi = c
	s.mu.Unlock()
	return c, nil
}

// tagged is Backend.tagged with one session.
func (c *restClient) tagged(ctx context.Context, cats []Category) (map[types.ManagedObjectReference]map[string]string, error) {
	m := tags.NewManager(c.Client)
	all, err := m.GetCategories(ctx)
	if err != nil {
		return nil, err
	}
	out := map[types.ManagedObjectReference]map[string]string{}
	for _, cat := range cats {
		i := slices.IndexFunc(all, func(x tags.Category) bool { return x.Name == cat.Name })
		if i < 0 {
			return nil, controller.Errorf(controller.Internal, "[Labels] topology-categories: the vCenter has no tag category %q", cat.Name)
		}
		ts, err := m.GetTagsForCategory(ctx, all[i].ID)
		if err != nil {
			return nil, err
		}
		if len(ts) == 0 {
			continue
		}
		names := map[string]string{}
		var ids []string
		for _, t := range ts {
			names[t.ID] = t.Name
			ids = append(ids, t.ID)
		}
		objs, err := m.ListAttachedObjectsOnTags(ctx, ids)
		if err != nil {
			return nil, err
		}
		for _, o := range objs {
			for _, ref := range o.ObjectIDs {
				r := ref.Reference()
				if out[r] == nil {
					out[r] = map[string]string{}
				}
				out[r][cat.Key] = names[o.TagID]
			}
		}
	}
	return out, nil
}

// restClient notes that the server answered that there is no such session: the
// manager of tags makes plain texts of errors, from which that is gone.
type restClient struct {
	*rest.Client
	ended atomic.Bool
}

func newRESTClient(vim *vim25.Client) *restClient {
	c := &restClient{Client: rest.NewClient(vim)}
	traced(c.Client.Client)
	next := c.Client.Client.Transport
	c.Client.Client.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
		res, err := next.RoundTrip(r)
		if err == nil && res.StatusCode == http.StatusUnauthorized {
			c.ended.Store(true)
		}
		return res, err
	})
	return c
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// matches reports whether a host's segment has all that is asked for.
func matches(have, want map[string]string) bool {
	for k, v := range want {
		if have[k] != v {
			return false
		}
	}
	return true
}

func segmentText(seg map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(seg)) {
		parts = append(parts, k+"="+seg[k])
	}
	return strings.Join(parts, ",")
}
