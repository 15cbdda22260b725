package wsapi

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// PortPos is the place of a port.
type PortPos struct {
	Node int `json:"node"`
	Slot int `json:"slot"`
	Card int `json:"cardPort"`
}

func (p PortPos) String() string { return fmt.Sprintf("%d:%d:%d", p.Node, p.Slot, p.Card) }

// Types of exports.
const (
	HostSees   = 3
	MatchedSet = 4
	HostSet    = 5
)

// VLUN is an export, or (Active) what of one is in effect over a path.
type VLUN struct {
	Volume  string   `json:"volumeName"`
	LUN     int      `json:"lun"`
	Host    string   `json:"hostname"`
	PortPos *PortPos `json:"portPos"`
	WWN     string   `json:"volumeWWN"`
	Type    int      `json:"type"`
	Active  bool     `json:"active"`
	NQN     string   `json:"Subsystem_NQN"`
}

// ID is how the array names an export.
func (x VLUN) ID() string {
	id := x.Volume + "," + strconv.Itoa(x.LUN)
	if x.Host != "" || x.PortPos != nil {
		id += "," + x.Host
	}
	if x.PortPos != nil {
		id += "," + x.PortPos.String()
	}
	return id
}

// ParseLocation reads the export from the Location header of the answer that
// made it: …/vluns/volume,lun,host[,n:s:p].
func ParseLocation(location string) (VLUN, error) {
	_, id, ok := strings.Cut(location, "/vluns/")
	p := strings.Split(id, ",")
	bad := fmt.Errorf("wsapi: Location %q is no export", clip(location))
	if !ok || len(p) < 3 || len(p) > 4 {
		return VLUN{}, bad
	}
	lun, err := strconv.Atoi(p[1])
	if err != nil || lun < 0 {
		return VLUN{}, bad
	}
	x := VLUN{Volume: p[0], LUN: lun, Host: p[2], Type: HostSees}
	if len(p) == 4 {
		var pos PortPos
		if n, err := fmt.Sscanf(p[3], "%d:%d:%d", &pos.Node, &pos.Slot, &pos.Card); n != 3 || err != nil {
			return VLUN{}, bad
		}
		x.PortPos, x.Type = &pos, MatchedSet
	}
	return x, nil
}

// Export exports a volume to a host at the lowest LUN that is free there, over
// one port or (nil) over all. Errors: 404 codes 17, 20, 23, 409 codes 18 and
// 97, 503 code 270.
func (c *Client) Export(ctx context.Context, volume, host string, pos *PortPos) (VLUN, error) {
	in := struct {
		Volume  string   `json:"volumeName"`
		LUN     int      `json:"lun"`
		Host    string   `json:"hostname"`
		PortPos *PortPos `json:"portPos,omitempty"`
		Auto    bool     `json:"autoLun"`
		MaxAuto int      `json:"maxAutoLun"`
	}{volume, 0, host, pos, true, 0}
	l, err := c.do(ctx, http.MethodPost, "/vluns", in, nil)
	if err != nil {
		return VLUN{}, err
	}
	return ParseLocation(l)
}

// VLUNs returns all exports.
func (c *Client) VLUNs(ctx context.Context) ([]VLUN, error) {
	return list[VLUN](ctx, c, "/vluns")
}

// VLUNsOf returns the exports of a volume.
func (c *Client) VLUNsOf(ctx context.Context, volume string) ([]VLUN, error) {
	return list[VLUN](ctx, c, "/vluns"+query("volumeName EQ "+volume))
}

// VLUNsTo returns the exports to a host.
func (c *Client) VLUNsTo(ctx context.Context, host string) ([]VLUN, error) {
	return list[VLUN](ctx, c, "/vluns"+query("hostname EQ "+host))
}

// Unexport ends an export. Errors: 404 code 19.
func (c *Client) Unexport(ctx context.Context, x VLUN) error {
	_, err := c.do(ctx, http.MethodDelete, "/vluns/"+strings.ReplaceAll(seg(x.ID()), "%2C", ","), nil, nil)
	return err
}
