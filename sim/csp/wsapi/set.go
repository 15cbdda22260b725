package wsapi

import (
	"context"
	"net/http"
)

// Set is a set of volumes.
type Set struct {
	ID      int64    `json:"id"`
	Name    string   `json:"name"`
	Domain  string   `json:"domain,omitempty"`
	Comment string   `json:"comment,omitempty"`
	Members []string `json:"setmembers,omitempty"`
}

// VolumeSet returns one. Errors: 404 code 102.
func (c *Client) VolumeSet(ctx context.Context, name string) (s Set, err error) {
	return s, c.get(ctx, "/volumesets/"+seg(name), &s)
}

// VolumeSets returns all.
func (c *Client) VolumeSets(ctx context.Context) ([]Set, error) {
	return list[Set](ctx, c, "/volumesets")
}

// CreateVolumeSet makes an empty one. Errors: 409 code 101.
func (c *Client) CreateVolumeSet(ctx context.Context, s Set) error {
	_, err := c.do(ctx, http.MethodPost, "/volumesets", struct {
		Name    string `json:"name"`
		Domain  string `json:"domain,omitempty"`
		Comment string `json:"comment,omitempty"`
	}{s.Name, s.Domain, s.Comment}, nil)
	return err
}

// Changes of members.
const (
	AddMembers    = 1
	RemoveMembers = 2
)

// ChangeSetMembers adds volumes to a set, or removes them. That a volume is in
// the set already, or is not, is no error.
func (c *Client) ChangeSetMembers(ctx context.Context, set string, op int, volumes ...string) error {
	_, err := c.do(ctx, http.MethodPut, "/volumesets/"+seg(set), map[string]any{"action": op, "setmembers": volumes}, nil)
	if err == nil {
		return nil
	}
	s, gerr := c.VolumeSet(ctx, set) // the number of this refusal is not public
	if gerr != nil {
		return err
	}
	in := map[string]bool{}
	for _, m := range s.Members {
		in[m] = true
	}
	for _, v := range volumes {
		if in[v] != (op == AddMembers) {
			return err
		}
	}
	return nil
}

// SetComment changes the comment of a set.
func (c *Client) SetComment(ctx context.Context, set, comment string) error {
	_, err := c.do(ctx, http.MethodPut, "/volumesets/"+seg(set), map[string]string{"comment": comment}, nil)
	return err
}

// DeleteVolumeSet drops one; its volumes stay.
func (c *Client) DeleteVolumeSet(ctx context.Context, name string) error {
	_, err := c.do(ctx, http.MethodDelete, "/volumesets/"+seg(name), nil, nil)
	return err
}

// Rule of quality of service for a set of volumes.
type Rule struct {
	Name        string `json:"name,omitempty"`
	Type        int    `json:"type,omitempty"` // 1: a set of volumes
	Priority    int    `json:"priority,omitempty"`
	BwMinGoalKB int64  `json:"bwMinGoalKB,omitempty"`
	BwMaxLimit  int64  `json:"bwMaxLimitKB,omitempty"`
	IOMinGoal   int64  `json:"ioMinGoal,omitempty"`
	IOMaxLimit  int64  `json:"ioMaxLimit,omitempty"`
	LatencyGoal int64  `json:"latencyGoal,omitempty"` // ms
}

// Rule returns that of a set. Errors: 404 code 100.
func (c *Client) Rule(ctx context.Context, set string) (r Rule, err error) {
	return r, c.get(ctx, "/qos/vvset:"+seg(set), &r)
}

// CreateRule makes one. Errors: 400 code 114.
func (c *Client) CreateRule(ctx context.Context, r Rule) error {
	r.Type = 1
	_, err := c.do(ctx, http.MethodPost, "/qos", r, nil)
	return err
}

// DeleteRule drops that of a set.
func (c *Client) DeleteRule(ctx context.Context, set string) error {
	_, err := c.do(ctx, http.MethodDelete, "/qos/vvset:"+seg(set), nil, nil)
	return err
}
