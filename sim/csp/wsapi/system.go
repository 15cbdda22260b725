package wsapi

import (
	"context"
	"encoding/json"
	"net/http"
)

// Protocols of ports.
const (
	FC    = 1
	ISCSI = 2
	NVMe  = 6
)

// LinkReady is the state of a port that hosts can use.
const LinkReady = 4

// Types of ports that hosts are at.
const (
	HostPort  = 1
	ISCSIPort = 8
)

// Port as the array shows it.
type Port struct {
	PortPos   PortPos `json:"portPos"`
	LinkState int     `json:"linkState"`
	Protocol  int     `json:"protocol"`
	Type      int     `json:"type"`
	NodeWWN   string  `json:"nodeWWN"`
	PortWWN   string  `json:"portWWN"`
	ISCSIName string  `json:"iSCSIName"`
	IPAddr    string  `json:"IPAddr"`
	ISCSIInfo struct {
		IPAddr string
	} `json:"iSCSIPortInfo"`
}

// Address is the IP of a port of iSCSI or NVMe.
func (p Port) Address() string {
	if p.ISCSIInfo.IPAddr != "" {
		return p.ISCSIInfo.IPAddr
	}
	return p.IPAddr
}

// Ports returns all ports.
func (c *Client) Ports(ctx context.Context) ([]Port, error) {
	return list[Port](ctx, c, "/ports")
}

// System is what the array says of itself.
type System struct {
	Name, Model, SerialNumber, SystemVersion string
}

// System returns it.
func (c *Client) System(ctx context.Context) (s System, err error) {
	return s, c.get(ctx, "/system", &s)
}

// CPG is a pool.
type CPG struct {
	Name    string `json:"name"`
	Domain  string `json:"domain"`
	FreeMiB int64  `json:"freeSpaceMiB"`
}

// CPGs returns all.
func (c *Client) CPGs(ctx context.Context) ([]CPG, error) { return list[CPG](ctx, c, "/cpgs") }

// CPG returns one. Errors: 404 code 15.
func (c *Client) CPG(ctx context.Context, name string) (g CPG, err error) {
	return g, c.get(ctx, "/cpgs/"+seg(name), &g)
}

// FirstPrimera is the first build number of an array that is no 3PAR.
const FirstPrimera = 40000128

// Build is the number of the array's API, by which clients tell families apart.
// It needs no session.
func (c *Client) Build(ctx context.Context) (int, error) {
	var out struct{ Build int }
	err := c.again(ctx, worthwhile, func() error {
		a, err := c.send(ctx, http.MethodGet, "", "", nil)
		if err != nil {
			return err
		}
		return json.Unmarshal(a.body, &out)
	})
	return out.Build, err
}
