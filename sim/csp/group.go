package csp

import (
	"net/http"

	"github.com/csilab/csilab/sim/csp/wsapi"
)

// maxSetName is how long the name of a volume set may be.
const maxSetName = 27

// groupSet is the volume set of a volume group.
func groupSet(id string) string {
	if len(id) <= maxSetName && legal(id) == id {
		return id
	}
	return short("group", id, maxSetName)
}

func (i item) setName() string {
	if i.Set == "" {
		return ""
	}
	return groupSet(i.Set)
}

// group finds a volume group, with 404 where there is none.
func (s *Server) group(c *call, id string) (wsapi.Set, error) {
	set, err := c.array.VolumeSet(c.ctx, groupSet(id))
	if wsapi.NotFound(err) {
		return set, refuse(http.StatusNotFound, "volume group %s not found", clip(id))
	}
	return set, failed("looking for volume group "+clip(id), err)
}

// join puts a volume in a volume group, and out of the one in which it is.
func (s *Server) join(c *call, x *item, id string) error {
	if _, err := s.group(c, id); err != nil {
		return err
	}
	doing := "adding volume " + clip(x.ID) + " to volume group " + clip(id)
	if old := x.setName(); old != "" {
		if err := c.array.ChangeSetMembers(c.ctx, old, wsapi.RemoveMembers, x.vv.Name); err != nil && !wsapi.NotFound(err) {
			return failed(doing, err)
		}
	}
	if err := c.array.ChangeSetMembers(c.ctx, groupSet(id), wsapi.AddMembers, x.vv.Name); err != nil {
		return failed(doing, err)
	}
	x.Set = id
	return failed(doing, save(c.ctx, c.array, x.vv.Name, x.record))
}
