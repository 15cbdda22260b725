package csp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
)

// Bytes is a size. Providers write it as a number, some as a string.
type Bytes int64

// UnmarshalJSON implements json.Unmarshaler.
func (b *Bytes) UnmarshalJSON(data []byte) error {
	n, err := strconv.ParseInt(string(bytes.Trim(data, `"`)), 10, 64)
	switch {
	case string(data) == "null":
		return nil
	case err != nil || n < 0:
		return fmt.Errorf("size is %.40s, must be a number of bytes", data)
	}
	*b = Bytes(n)
	return nil
}

// Volume of a provider. Empty members are not sent.
type Volume struct {
	ID          string         `json:"id,omitempty"`
	Name        string         `json:"name,omitempty"`
	Size        Bytes          `json:"size,omitempty"`
	Description string         `json:"description,omitempty"`
	Base        string         `json:"base_snapshot_id,omitempty"`
	Clone       bool           `json:"clone,omitempty"`
	Group       string         `json:"volume_group_id,omitempty"`
	Published   bool           `json:"published,omitempty"`
	Config      map[string]any `json:"config,omitempty"`
}

// Background is the state of what the provider still does to the volume, such
// as copying it; "" when it does nothing.
func (v Volume) Background() string {
	s, _ := v.Config["background_operation_status"].(string)
	if s == "Completed" {
		return ""
	}
	return s
}

// Snapshot of a volume.
type Snapshot struct {
	ID          string         `json:"id,omitempty"`
	Name        string         `json:"name,omitempty"`
	Size        Bytes          `json:"size,omitempty"`
	Description string         `json:"description,omitempty"`
	Volume      string         `json:"volume_id,omitempty"`
	VolumeName  string         `json:"volume_name,omitempty"`
	Created     int64          `json:"creation_time,omitempty"` // seconds since 1970
	Ready       bool           `json:"ready_to_use,omitempty"`
	Config      map[string]any `json:"config,omitempty"`
}

// Host is a node with its initiators.
type Host struct {
	Name     string   `json:"name"`
	UUID     string   `json:"uuid"`
	IQNs     []string `json:"iqns,omitempty"`
	Networks []string `json:"networks,omitempty"`
	WWPNs    []string `json:"wwpns,omitempty"`
	NQNs     []string `json:"nqns,omitempty"`
	CHAPUser string   `json:"chap_user,omitempty"`
	CHAPPass string   `json:"chap_password,omitempty"`
	Protocol string   `json:"access_protocol,omitempty"`
	Domain   string   `json:"virtual_domain,omitempty"`
}

// Publication is how a host reaches a volume.
type Publication struct {
	Serial      string   `json:"serial_number"`
	Protocol    string   `json:"access_protocol"`
	LUN         LUN      `json:"lun_id"`
	Targets     []string `json:"target_names"`
	IPs         []string `json:"discovery_ips"`
	PeerDetails []Peer   `json:"PeerArrayDetails"`
}

// FilePublication is how a node reaches a share of files.
type FilePublication struct {
	ExportIP  string `json:"export_ip"`
	MountPath string `json:"mount_path"`
}

// Peer is the same on the other array of a pair.
type Peer struct {
	LUN     LUN      `json:"lun_id"`
	Targets []string `json:"target_names"`
	IPs     []string `json:"discovery_ips"`
}

// LUN is a LUN number. Unset differs from 0: a reply without it says nothing
// about the device, and a wrong guess is another volume's.
type LUN struct {
	Number int
	Set    bool
}

// UnmarshalJSON implements json.Unmarshaler. Only an integer is a LUN: a string
// or a fraction is refused, since taking it for 0 would name another device.
func (l *LUN) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return nil
	}
	n, err := strconv.ParseInt(string(data), 10, 32)
	if err != nil {
		return fmt.Errorf("lun_id is %.40s, must be an integer", data)
	}
	*l = LUN{int(n), true}
	return nil
}

// MarshalJSON implements json.Marshaler.
func (l LUN) MarshalJSON() ([]byte, error) {
	if !l.Set {
		return []byte("null"), nil
	}
	return json.Marshal(l.Number)
}

// VolumeGroup is a set of volumes that are snapshot together.
type VolumeGroup struct {
	ID          string         `json:"id,omitempty"`
	Name        string         `json:"name,omitempty"`
	Description string         `json:"description,omitempty"`
	Config      map[string]any `json:"config,omitempty"`
	Volumes     []Volume       `json:"volumes,omitempty"`
}

// SnapshotGroup is the snapshots of a volume group at one moment.
type SnapshotGroup struct {
	ID        string         `json:"id,omitempty"`
	Name      string         `json:"name,omitempty"`
	Group     string         `json:"volume_group_id,omitempty"`
	GroupName string         `json:"volume_group_name,omitempty"`
	Created   int64          `json:"creation_time,omitempty"`
	Snapshots []Snapshot     `json:"snapshots,omitempty"`
	Config    map[string]any `json:"config,omitempty"`
}
