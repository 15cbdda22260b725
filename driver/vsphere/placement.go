package vsphere

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vmware/govmomi/pbm"
	pbmmethods "github.com/vmware/govmomi/pbm/methods"
	pbmtypes "github.com/vmware/govmomi/pbm/types"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/driver/controller"
)

// parameters are those of a StorageClass.
type parameters struct {
	policy    string
	datastore string // URL
}

// parseParameters takes the keys of upstream's driver, in any case, and those
// that the provisioner adds about PVC and PV, which say nothing to storage.
func parseParameters(in map[string]string) (p parameters, err error) {
	seen := map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(in)) {
		v, key := in[k], strings.ToLower(k)
		if first, ok := seen[key]; ok {
			return p, controller.Errorf(controller.Invalid, "parameter %q: given before as %q", k, first)
		}
		seen[key] = k
		switch {
		case key == "storagepolicyname":
			p.policy = v
		case key == "datastoreurl":
			p.datastore = v
		case key == "fstype", strings.HasPrefix(key, "csi.storage.k8s.io/"):
		case key == "csimigration":
			if !strings.EqualFold(v, "false") && v != "" {
				return p, controller.Errorf(controller.Invalid, "parameter %q = %q: migration of in-tree volumes is not supported, allowed: false", k, v)
			}
		default:
			return p, controller.Errorf(controller.Invalid, "parameter %q: unknown, allowed: storagepolicyname, datastoreurl, fstype, csimigration", k)
		}
	}
	return p, nil
}

// candidates is where a volume may go.
type candidates struct {
	stores []datastore
	// policyID of the storage policy, empty without one.
	policyID string
	// segments maps a datastore's URL to those of the asked segments whose
	// hosts all reach it.
	segments map[string][]map[string]string
}

// place chooses the datastores for a volume: usable, of the policy and URL
// that the parameters name, and reached by every host that may run its pod.
// Without topology these are all hosts; with it the hosts of the first
// segment, preferred before requisite, that has a datastore.
//
// source, when not empty, is the URL of the datastore that a restored snapshot
// must stay on.
func (b *Backend) place(ctx context.Context, p parameters, preferred, requisite []map[string]string, source string) (*candidates, error) {
	stores, hosts, err := b.storage(ctx)
	if err != nil {
		return nil, err
	}
	c := &candidates{segments: map[string][]map[string]string{}}
	var why []string
	drop := func(reason func(d datastore) string) {
		stores = slices.DeleteFunc(stores, func(d datastore) bool {
			r := reason(d)
			if r != "" {
				why = append(why, d.name+": "+r)
			}
			return r != ""
		})
	}
	if p.datastore != "" && !slices.ContainsFunc(stores, func(d datastore) bool { return d.url == p.datastore }) {
		var have []string
		for _, d := range stores {
			have = append(have, d.url)
		}
		slices.Sort(have)
		return nil, controller.Errorf(controller.Invalid, "parameter datastoreurl = %q: no such datastore, there are %s", p.datastore, strings.Join(have, ", "))
	}
	drop(func(d datastore) string {
		switch {
		case p.datastore != "" && d.url != p.datastore:
			return "not the one that the parameters name"
		case source != "" && d.url != source:
			return "not the one of the source"
		}
		return d.usable
	})
	if p.policy != "" {
		fits, id, err := b.policy(ctx, p.policy, stores)
		if err != nil {
			return nil, err
		}
		c.policyID = id
		drop(func(d datastore) string {
			if !fits[d.ref.Value] {
				return "doesn't satisfy the storage policy"
			}
			return ""
		})
	}
	if len(hosts) == 0 {
		return nil, controller.Errorf(controller.Exhausted, "no host is connected and out of maintenance mode")
	}
	asked, err := b.segments(preferred, requisite)
	if err != nil {
		return nil, err
	}
	if len(asked) == 0 {
		drop(func(d datastore) string { return unreached(d, hosts) })
		c.stores = stores
	} else {
		zones, err := b.zones(ctx, hosts)
		if err != nil {
			return nil, err
		}
		for _, seg := range asked {
			in := slices.DeleteFunc(slices.Clone(hosts), func(h host) bool { return !matches(zones[h.ref], seg) })
			if len(in) == 0 {
				why = append(why, fmt.Sprintf("%s: no host there", segmentText(seg)))
				continue
			}
			var there []datastore
			for _, d := range stores {
				if u := unreached(d, in); u != "" {
					why = append(why, fmt.Sprintf("%s in %s: %s", d.name, segmentText(seg), u))
					continue
				}
				there = append(there, d)
				c.segments[d.url] = append(c.segments[d.url], seg)
			}
			if c.stores == nil {
				c.stores = there
			}
		}
	}
	if len(c.stores) == 0 {
		if len(why) > 8 {
			why = append(why[:8], "…")
		}
		return c, controller.Errorf(controller.Exhausted, "no datastore qualifies: %s", strings.Join(why, "; "))
	}
	return c, nil
}

// unreached says which of the hosts don't reach the datastore.
func unreached(d datastore, hosts []host) string {
	var missing []string
	for _, h := range hosts {
		if !d.hosts[h.ref] {
			missing = append(missing, h.name)
		}
	}
	if len(missing) == 0 {
		return ""
	}
	return fmt.Sprintf("not accessible to all nodes' hosts, missing %s", strings.Join(missing, ", "))
}

// segments lists what is asked for, the preferred first, each once. A segment
// without keys asks for nothing.
func (b *Backend) segments(preferred, requisite []map[string]string) ([]map[string]string, error) {
	keys := map[string]bool{}
	for _, c := range b.conf().Topology {
		keys[c.Key] = true
	}
	var out []map[string]string
	for _, seg := range slices.Concat(preferred, requisite) {
		for k := range seg {
			if !keys[k] {
				return nil, controller.Errorf(controller.Invalid, "topology key %q: unknown, the configuration has %s", k,
					strings.Join(append(slices.Sorted(maps.Keys(keys)), "no other"), ", "))
			}
		}
		if len(seg) > 0 && !slices.ContainsFunc(out, func(o map[string]string) bool { return maps.Equal(o, seg) }) {
			out = append(out, seg)
		}
	}
	return out, nil
}

// policy returns the id of a storage policy and which of the datastores, by
// managed object id, satisfy it.
func (b *Backend) policy(ctx context.Context, name string, stores []datastore) (fits map[string]bool, id string, err error) {
	err = b.read(ctx, func(ctx context.Context, s *session) error {
		fits = map[string]bool{}
		s.mu.Lock()
		pc := s.policies
		s.mu.Unlock()
		if pc == nil {
			var err error
			if pc, err = pbm.NewClient(ctx, s.vim); err != nil {
				return err
			}
			traced(pc.Client)
			s.mu.Lock()
			s.policies = pc
			s.mu.Unlock()
		}
		if id, err = profileID(ctx, pc, name); err != nil {
			return err
		}
		if len(stores) == 0 {
			return nil
		}
		var hubs []pbmtypes.PbmPlacementHub
		for _, d := range stores {
			hubs = append(hubs, pbmtypes.PbmPlacementHub{HubType: d.ref.Type, HubId: d.ref.Value})
		}
		res, err := pbmmethods.PbmCheckCompatibility(ctx, pc, &pbmtypes.PbmCheckCompatibility{This: pc.ServiceContent.PlacementSolver,
			HubsToSearch: hubs, Profile: pbmtypes.PbmProfileId{UniqueId: id}})
		if err != nil {
			return err
		}
		for _, h := range pbm.PlacementCompatibilityResult(res.Returnval).CompatibleDatastores() {
			fits[h.HubId] = true
		}
		return nil
	})
	if err != nil {
		return nil, "", failf(err, "storage policy %q", name)
	}
	return fits, id, nil
}

func profileID(ctx context.Context, pc *pbm.Client, name string) (string, error) {
	ids, err := pc.QueryProfile(ctx, pbmtypes.PbmProfileResourceType{ResourceType: string(pbmtypes.PbmProfileResourceTypeEnumSTORAGE)},
		string(pbmtypes.PbmProfileCategoryEnumREQUIREMENT))
	if err != nil {
		return "", err
	}
	if len(ids) > 0 {
		ps, err := pc.RetrieveContent(ctx, ids)
		if err != nil {
			return "", err
		}
		for _, p := range ps {
			if p := p.GetPbmProfile(); p.Name == name {
				return p.ProfileId.UniqueId, nil
			}
		}
	}
	return "", controller.Errorf(controller.Invalid, "no storage policy has this name")
}

func refs(ds []datastore) []types.ManagedObjectReference {
	out := make([]types.ManagedObjectReference, len(ds))
	for i, d := range ds {
		out[i] = d.ref
	}
	return out
}
