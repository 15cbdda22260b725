package wsapi

import (
	"context"
	"net/http"
)

// Roles, modes and states of remote copy groups.
const (
	Primary   = 1
	Secondary = 2

	Synchronous = 1
	Periodic    = 3

	GroupStarted = 3
	GroupStopped = 5
)

// Group is a remote copy group as one array shows it.
type Group struct {
	Name    string `json:"name"`
	Role    int    `json:"role"`
	Targets []struct {
		Name        string `json:"targetName"`
		RemoteGroup string `json:"remoteGroupName"`
		Mode        int    `json:"mode"`
		State       int    `json:"state"`
		Policies    struct {
			AutoFailover   bool `json:"autoFailover"`
			PathManagement bool `json:"pathManagement"`
			ActiveActive   bool `json:"activeActive"`
		} `json:"policies"`
	} `json:"targets"`
	Volumes []GroupVolume `json:"volumes"`
}

// GroupVolume is a volume of a group, with its peers.
type GroupVolume struct {
	Local   string `json:"localVolumeName"`
	Remotes []struct {
		Target string `json:"targetName"`
		Volume string `json:"remoteVolumeName"`
	} `json:"remoteVolumes"`
}

// Started says whether the group copies.
func (g Group) Started() bool { return len(g.Targets) > 0 && g.Targets[0].State == GroupStarted }

// Target is the name of the other array, or "".
func (g Group) Target() string {
	if len(g.Targets) == 0 {
		return ""
	}
	return g.Targets[0].Name
}

// PeerPersistence says whether hosts see a volume of the group on both arrays.
func (g Group) PeerPersistence() bool {
	return len(g.Targets) > 0 && g.Targets[0].Mode == Synchronous && g.Targets[0].Policies.AutoFailover && g.Targets[0].Policies.PathManagement
}

// RemoteVolume is the peer of a volume of the group; false where the volume is
// not in it.
func (g Group) RemoteVolume(local string) (string, bool) {
	for _, v := range g.Volumes {
		if v.Local == local {
			for _, r := range v.Remotes {
				return r.Volume, true
			}
			return "", true
		}
	}
	return "", false
}

// Group returns one. Errors: 404 code 187.
func (c *Client) Group(ctx context.Context, name string) (g Group, err error) {
	return g, c.get(ctx, "/remotecopygroups/"+seg(name), &g)
}

// Groups returns all groups.
func (c *Client) Groups(ctx context.Context) ([]Group, error) {
	return list[Group](ctx, c, "/remotecopygroups")
}

// NewGroup says what group to make.
type NewGroup struct {
	Name         string        `json:"name"`
	LocalUserCPG string        `json:"localUserCPG,omitempty"`
	LocalSnapCPG string        `json:"localSnapCPG,omitempty"`
	Targets      []GroupTarget `json:"targets"`
}

// GroupTarget is where a group copies to.
type GroupTarget struct {
	Name    string `json:"targetName"`
	Mode    int    `json:"mode"`
	UserCPG string `json:"userCPG,omitempty"`
	SnapCPG string `json:"snapCPG,omitempty"`
}

// CreateGroup makes one, empty and stopped. Errors: 409 code 237, 404 code 15.
func (c *Client) CreateGroup(ctx context.Context, g NewGroup) error {
	_, err := c.do(ctx, http.MethodPost, "/remotecopygroups", g, nil)
	return err
}

func (c *Client) changeGroup(ctx context.Context, name string, body any) error {
	_, err := c.do(ctx, http.MethodPut, "/remotecopygroups/"+seg(name), body, nil)
	return err
}

// Active says whether hosts use the paths of both arrays.
func (g Group) Active() bool { return g.PeerPersistence() && g.Targets[0].Policies.ActiveActive }

// SetPeerPersistence lets hosts see the volumes of a stopped group on both
// arrays, and the target take over.
func (c *Client) SetPeerPersistence(ctx context.Context, name, target string, active bool) error {
	policies := map[string]bool{"autoFailover": true, "pathManagement": true}
	if active {
		policies["activeActive"] = true
	}
	return c.changeGroup(ctx, name, map[string]any{"targets": []any{map[string]any{"targetName": target, "policies": policies}}})
}

// SetPeriod changes how often a stopped group copies, in seconds.
func (c *Client) SetPeriod(ctx context.Context, name, target string, seconds int64) error {
	return c.changeGroup(ctx, name, map[string]any{"targets": []any{map[string]any{"targetName": target, "syncPeriod": seconds}}})
}

// Admit puts a volume in a stopped group; the target makes its peer.
func (c *Client) Admit(ctx context.Context, group, target, volume, remote string) error {
	return c.changeGroup(ctx, group, map[string]any{"action": 1, "volumeName": volume, "volumeAutoCreation": true,
		"targets": []any{map[string]string{"targetName": target, "secVolumeName": remote}}})
}

// Dismiss takes a volume out of a stopped group, and drops its peer.
func (c *Client) Dismiss(ctx context.Context, group, volume string) error {
	return c.changeGroup(ctx, group, map[string]any{"action": 2, "volumeName": volume, "removeSecondaryVolume": true})
}

// StartGroup lets a group copy. That it does already is no error.
func (c *Client) StartGroup(ctx context.Context, name string) error {
	err := c.changeGroup(ctx, name, map[string]any{"action": 3})
	if Is(err, CodeGroupStarted) {
		return nil
	}
	return err
}

// StopGroup lets a group copy no more.
func (c *Client) StopGroup(ctx context.Context, name string) error {
	return c.changeGroup(ctx, name, map[string]any{"action": 4})
}

// DeleteGroup drops a stopped group. Errors: 404 code 187.
func (c *Client) DeleteGroup(ctx context.Context, name string) error {
	_, err := c.do(ctx, http.MethodDelete, "/remotecopygroups/"+seg(name), nil, nil)
	return err
}

// Target of remote copy.
type Target struct {
	Name  string `json:"name"`
	State int    `json:"state"` // 1 ready
}

// Targets returns all targets of remote copy.
func (c *Client) Targets(ctx context.Context) ([]Target, error) {
	return list[Target](ctx, c, "/remotecopytargets")
}
