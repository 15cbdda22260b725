package csp

import (
	"cmp"
	"maps"
	"net/http"
	"slices"

	"github.com/csilab/csilab/sim/csp/wsapi"
)

// With Active Peer Persistence a volume can be published while the array that it
// was made on is lost: by the other one, once that has taken over. Nothing else
// is answered then (SCOD): no volume is made, expanded, unpublished or deleted
// until the array is back. With Classic Peer Persistence not even that.

// survivor is an array that stands in for a lost one.
type survivor struct {
	on     *backend
	array  *wsapi.Client
	groups []wsapi.Group // that it has taken over
}

// has finds the group that holds a volume.
func (v *survivor) has(volume string) bool {
	return slices.ContainsFunc(v.groups, func(g wsapi.Group) bool { _, in := g.RemoteVolume(volume); return in })
}

// survivors are the arrays that have taken groups with Active Peer Persistence
// over from a lost one, in the order of the replication devices that lead to
// them. Those that can't be asked are none.
func (s *Server) survivors(c *call, lost *backend, l login) (out []*survivor) {
	for _, name := range slices.Sorted(maps.Keys(s.cfg.ReplicationDevices)) {
		d := s.cfg.ReplicationDevices[name]
		b := s.arrayNamed(d.TargetName)
		if b == nil || b == lost || slices.ContainsFunc(out, func(v *survivor) bool { return v.on == b }) {
			continue
		}
		a := b.client(login{cmp.Or(d.TargetUser, l.user), cmp.Or(d.TargetPassword, l.password)})
		groups, err := a.Groups(c.ctx)
		if err != nil {
			continue
		}
		groups = slices.DeleteFunc(groups, func(g wsapi.Group) bool {
			return !g.Active() || g.Role != wsapi.Primary || g.Target() != lost.Name
		})
		if len(groups) > 0 {
			out = append(out, &survivor{b, a, groups})
		}
	}
	return out
}

// instead carries a request out at a survivor of the array that it is for, which
// did not answer: err is what it failed with.
func (s *Server) instead(to route, c *call, err error) (reply, error) {
	for _, v := range s.survivors(c, c.on, c.token.login) {
		other := *c
		other.on, other.array, other.instead = v.on, v.array, v
		res, serr := to.serve(s, &other)
		if serr == nil {
			return res, nil
		}
		var f *failure
		if asFailure(serr, &f) && f.status != http.StatusNotFound { // another may have the volume
			return reply{}, serr
		}
	}
	return reply{}, err
}
