package wsapi

import (
	"context"
	"net/http"
)

// Host as the array shows it.
type Host struct {
	ID          int64       `json:"id"`
	Name        string      `json:"name"`
	Domain      string      `json:"domain"`
	FCPaths     []HostPath  `json:"FCPaths"`
	ISCSIPaths  []HostPath  `json:"iSCSIPaths"`
	NVMePaths   []HostPath  `json:"NVMETCPPaths"`
	CHAPName    string      `json:"initiatorChapName"`
	Descriptors Descriptors `json:"descriptors"`
}

// HostPath is an initiator, once for each port where it is logged in.
type HostPath struct {
	WWN     string   `json:"wwn"`
	Name    string   `json:"name"`
	NQN     string   `json:"NQN"`
	PortPos *PortPos `json:"portPos"`
}

// Descriptors say what a host is.
type Descriptors struct {
	OS      string `json:"os,omitempty"`
	Comment string `json:"comment,omitempty"`
}

// Host returns one by name. Errors: 404 code 17.
func (c *Client) Host(ctx context.Context, name string) (h Host, err error) {
	return h, c.get(ctx, "/hosts/"+seg(name), &h)
}

// Hosts returns all hosts.
func (c *Client) Hosts(ctx context.Context) ([]Host, error) {
	return list[Host](ctx, c, "/hosts")
}

// HostsWith returns those that have one of some initiators.
func (c *Client) HostsWith(ctx context.Context, wwns, iqns, nqns []string) ([]Host, error) {
	var q string
	for _, x := range []struct {
		list, field string
		names       []string
	}{{"FCPaths", "wwn", wwns}, {"iSCSIPaths", "name", iqns}, {"NVMETCPPaths", "nqn", nqns}} {
		if len(x.names) == 0 {
			continue
		}
		if q != "" {
			q += " OR "
		}
		q += x.list + "["
		for i, n := range x.names {
			if i > 0 {
				q += " OR "
			}
			q += x.field + "==" + n
		}
		q += "]"
	}
	if q == "" {
		return nil, nil
	}
	return list[Host](ctx, c, "/hosts"+query(q))
}

// NewHost says what host to make: with initiators of one kind.
type NewHost struct {
	Name          string       `json:"name"`
	Domain        string       `json:"domain,omitempty"`
	Persona       int          `json:"persona,omitempty"`
	FCWWNs        []string     `json:"FCWWNs,omitempty"`
	ISCSINames    []string     `json:"iSCSINames,omitempty"`
	NQN           string       `json:"NQN,omitempty"`
	TransportType int          `json:"transportType,omitempty"` // 2 is TCP
	Descriptors   *Descriptors `json:"descriptors,omitempty"`
}

// CreateHost makes one. Errors: 409 codes 16 and 73, 400 code 98.
func (c *Client) CreateHost(ctx context.Context, h NewHost) error {
	_, err := c.do(ctx, http.MethodPost, "/hosts", h, nil)
	return err
}

// DeleteHost drops one. Errors: 404 code 17, 409 code 26.
func (c *Client) DeleteHost(ctx context.Context, name string) error {
	_, err := c.do(ctx, http.MethodDelete, "/hosts/"+seg(name), nil, nil)
	return err
}

// Path operations of a change.
const (
	AddPaths    = 1
	RemovePaths = 2
)

// HostChange changes the initiators of a host, or what it says about itself.
type HostChange struct {
	Descriptors   *Descriptors `json:"descriptors,omitempty"`
	PathOperation int          `json:"pathOperation,omitempty"`
	FCWWNs        []string     `json:"FCWWNs,omitempty"`
	ISCSINames    []string     `json:"iSCSINames,omitempty"`
	NQN           string       `json:"NQN,omitempty"`
}

// ModifyHost changes one.
func (c *Client) ModifyHost(ctx context.Context, name string, ch HostChange) error {
	_, err := c.do(ctx, http.MethodPut, "/hosts/"+seg(name), ch, nil)
	return err
}

// SetCHAP lets a host authenticate itself with a name and a secret of 12 to 16
// characters.
func (c *Client) SetCHAP(ctx context.Context, host, name, secret string) error {
	_, err := c.do(ctx, http.MethodPut, "/hosts/"+seg(host), map[string]any{"chapOperation": 1, "chapOperationMode": 1, "chapName": name, "chapSecret": secret}, nil)
	return err
}
