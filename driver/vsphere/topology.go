package vsphere

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/vapi/rest"
	"github.com/vmware/govmomi/vapi/tags"
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

// tagged returns key and value by object for the tags of the categories.
func (b *Backend) tagged(ctx context.Context, s *session, cats []Category) (map[types.ManagedObjectReference]map[string]string, error) {
	s.mu.Lock()
	rc := s.vapi
	s.mu.Unlock()
	if rc == nil {
		rc = rest.NewClient(s.vim)
		traced(rc.Client)
		if err := rc.Login(ctx, s.user); err != nil {
			return nil, restError(err)
		}
		s.mu.Lock()
		s.vapi = rc
		s.mu.Unlock()
	}
	m := tags.NewManager(rc)
	all, err := m.GetCategories(ctx)
	if err != nil {
		return nil, restError(err)
	}
	out := map[types.ManagedObjectReference]map[string]string{}
	for _, c := range cats {
		i := slices.IndexFunc(all, func(x tags.Category) bool { return x.Name == c.Name })
		if i < 0 {
			return nil, controller.Errorf(controller.Internal, "[Labels] topology-categories: the vCenter has no tag category %q", c.Name)
		}
		ts, err := m.GetTagsForCategory(ctx, all[i].ID)
		if err != nil {
			return nil, restError(err)
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
			return nil, restError(err)
		}
		for _, o := range objs {
			for _, ref := range o.ObjectIDs {
				r := ref.Reference()
				if out[r] == nil {
					out[r] = map[string]string{}
				}
				out[r][c.Key] = names[o.TagID]
			}
		}
	}
	return out, nil
}

// restError makes an expired REST session look as one of SOAP.
func restError(err error) error {
	if rest.IsStatusError(err, 401) {
		return newFault(types.NotAuthenticated{}, err.Error())
	}
	return err
}

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
