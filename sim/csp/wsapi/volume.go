package wsapi

import (
	"context"
	"net/http"
	"time"
)

// Kinds of volumes: copyType.
const (
	BaseVolume   = 1
	PhysicalCopy = 2
	VirtualCopy  = 3
)

// StateFailed of a volume: its content is not complete.
const StateFailed = 3

// Volume as the array shows it.
type Volume struct {
	ID           int64  `json:"id"`
	Name         string `json:"name"`
	WWN          string `json:"wwn"`
	SizeMiB      int64  `json:"sizeMiB"`
	Provisioning int    `json:"provisioningType"`
	CopyType     int    `json:"copyType"`
	CopyOf       string `json:"copyOf"`
	ReadOnly     bool   `json:"readOnly"`
	State        int    `json:"state"`
	UserCPG      string `json:"userCPG"`
	SnapCPG      string `json:"snapCPG"`
	Comment      string `json:"comment"`
	Domain       string `json:"domain"`
	Compression  int    `json:"compressionState"` // 1 yes
	Created8601  string `json:"creationTime8601"`
}

// Created is when a volume was made, or the zero time.
func (v Volume) Created() time.Time {
	t, err := time.Parse(time.RFC3339, v.Created8601)
	if err != nil {
		return time.Time{}
	}
	return t
}

// Volume returns one by name. Errors: 404 code 23.
func (c *Client) Volume(ctx context.Context, name string) (v Volume, err error) {
	return v, c.get(ctx, "/volumes/"+seg(name), &v)
}

// Volumes returns all volumes and virtual copies.
func (c *Client) Volumes(ctx context.Context) ([]Volume, error) {
	return list[Volume](ctx, c, "/volumes")
}

// CopiesOf returns the copies of a volume.
func (c *Client) CopiesOf(ctx context.Context, name string) ([]Volume, error) {
	return list[Volume](ctx, c, "/volumes"+query("copyOf EQ "+name))
}

// NewVolume says what volume to make.
type NewVolume struct {
	Name        string `json:"name"`
	CPG         string `json:"cpg"`
	SnapCPG     string `json:"snapCPG,omitempty"`
	SizeMiB     int64  `json:"sizeMiB"`
	TPVV        bool   `json:"tpvv,omitempty"`
	TDVV        bool   `json:"tdvv,omitempty"`
	Reduce      bool   `json:"reduce,omitempty"`
	Compression bool   `json:"compression,omitempty"`
	Comment     string `json:"comment,omitempty"`
}

// CreateVolume makes one. Errors: 409 code 22, 404 code 15, 400 code 24, …
func (c *Client) CreateVolume(ctx context.Context, v NewVolume) error {
	_, err := c.do(ctx, http.MethodPost, "/volumes", v, nil)
	return err
}

// VolumeChange renames a volume or changes its comment; nil leaves a thing.
type VolumeChange struct {
	NewName *string `json:"newName,omitempty"`
	Comment *string `json:"comment,omitempty"`
	SnapCPG *string `json:"snapCPG,omitempty"`
}

// ModifyVolume changes one. Errors: 404 code 23, 409 code 22.
func (c *Client) ModifyVolume(ctx context.Context, name string, ch VolumeChange) error {
	_, err := c.do(ctx, http.MethodPut, "/volumes/"+seg(name), ch, nil)
	return err
}

// GrowVolume enlarges one by some MiB. What is more than asked for can't be taken
// back, so it is never sent twice (CON-3329): an Unreachable leaves it open
// whether it was done.
func (c *Client) GrowVolume(ctx context.Context, name string, moreMiB int64) error {
	_, err := c.exchange(ctx, refusedForNow, http.MethodPut, "/volumes/"+seg(name), map[string]any{"action": 3, "sizeMiB": moreMiB}, nil)
	return err
}

// StopCopy stops the physical copy to a volume.
func (c *Client) StopCopy(ctx context.Context, name string) error {
	_, err := c.do(ctx, http.MethodPut, "/volumes/"+seg(name), map[string]any{"action": 1}, nil)
	return err
}

// Tune says to what a volume is converted, or where it moves: one of both.
type Tune struct {
	UserCPG    string
	Conversion int // 1 thin, 2 full, 3 deduplicated, 4 reduced
}

// TuneVolume starts a tuning. The volume stays in use.
func (c *Client) TuneVolume(ctx context.Context, name string, t Tune) error {
	body := map[string]any{"action": 6, "tuneOperation": 1, "userCPG": t.UserCPG}
	if t.Conversion != 0 {
		body["conversionOperation"] = t.Conversion
	}
	_, err := c.do(ctx, http.MethodPut, "/volumes/"+seg(name), body, nil)
	return err
}

// DeleteVolume drops one. Errors: 404 code 23, 409 codes 25, 26, 32, 34, 151,
// 400 code 29.
func (c *Client) DeleteVolume(ctx context.Context, name string) error {
	_, err := c.do(ctx, http.MethodDelete, "/volumes/"+seg(name), nil, nil)
	return err
}

// NewCopy says what virtual copy to make.
type NewCopy struct {
	Name            string `json:"name"`
	ReadOnly        bool   `json:"readOnly"`
	Comment         string `json:"comment,omitempty"`
	ExpirationHours int64  `json:"expirationHours,omitempty"`
	RetentionHours  int64  `json:"retentionHours,omitempty"`
}

type action struct {
	Action     string `json:"action"`
	Parameters any    `json:"parameters"`
}

// CreateCopy makes a virtual copy of a volume.
func (c *Client) CreateCopy(ctx context.Context, of string, n NewCopy) error {
	_, err := c.do(ctx, http.MethodPost, "/volumes/"+seg(of), action{"createSnapshot", n}, nil)
	return err
}

// CopySet makes virtual copies of all volumes of a set, of one moment. The name
// is a pattern: @count@ stands for the number in the set.
func (c *Client) CopySet(ctx context.Context, set string, n NewCopy) error {
	_, err := c.do(ctx, http.MethodPost, "/volumesets/"+seg(set), action{"createSnapshot", n}, nil)
	return err
}

// NewClone says what physical copy to make. Online makes the volume that gets
// the content, which needs a CPG then; else it is there.
type NewClone struct {
	DestVolume  string `json:"destVolume"`
	Online      bool   `json:"online,omitempty"`
	DestCPG     string `json:"destCPG,omitempty"`
	SnapCPG     string `json:"snapCPG,omitempty"`
	TPVV        bool   `json:"tpvv,omitempty"`
	TDVV        bool   `json:"tdvv,omitempty"`
	Reduce      bool   `json:"reduce,omitempty"`
	Compression bool   `json:"compression,omitempty"`
}

// Clone starts a physical copy and returns its task.
func (c *Client) Clone(ctx context.Context, of string, n NewClone) (int64, error) {
	var out struct{ TaskID int64 }
	_, err := c.do(ctx, http.MethodPost, "/volumes/"+seg(of), action{"createPhysicalCopy", n}, &out)
	return out.TaskID, err
}

// Values returns the key/value pairs of a volume.
func (c *Client) Values(ctx context.Context, name string) (map[string]string, error) {
	type pair struct{ Key, Value string }
	all, err := list[pair](ctx, c, "/volumes/"+seg(name)+"/objectKeyValues")
	if err != nil {
		return nil, err
	}
	out := make(map[string]string, len(all))
	for _, p := range all {
		out[p.Key] = p.Value
	}
	return out, nil
}

// SetValue sets a pair of a volume, new or not.
func (c *Client) SetValue(ctx context.Context, name, key, value string) error {
	_, err := c.do(ctx, http.MethodPost, "/volumes/"+seg(name)+"/objectKeyValues", map[string]string{"key": key, "value": value}, nil)
	if Is(err, CodeKeyThere) {
		_, err = c.do(ctx, http.MethodPut, "/volumes/"+seg(name)+"/objectKeyValues/"+seg(key), map[string]string{"value": value}, nil)
	}
	return err
}

// DeleteValue drops a pair of a volume.
func (c *Client) DeleteValue(ctx context.Context, name, key string) error {
	_, err := c.do(ctx, http.MethodDelete, "/volumes/"+seg(name)+"/objectKeyValues/"+seg(key), nil, nil)
	return err
}
