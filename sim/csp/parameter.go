package csp

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Access protocols.
const (
	protoISCSI = "iscsi"
	protoFC    = "fc"
	protoNVMe  = "nvmetcp"
	protoFile  = "nfs"
)

// Modes of replication.
const (
	modeSync     = "sync"
	modePeriodic = "periodic"
)

// policyActive is the replication_policy of Active Peer Persistence: hosts use
// the paths of both arrays.
const policyActive = "active"

// config are parameters as they come: most of their values are strings, some
// booleans or numbers.
type config map[string]string

// UnmarshalJSON takes strings, booleans and numbers, passes over null, and
// keeps everything else as JSON.
func (c *config) UnmarshalJSON(b []byte) error {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	*c = config{}
	for k, v := range raw {
		if string(v) == "null" {
			continue
		}
		var s string
		if json.Unmarshal(v, &s) != nil {
			s = string(v)
		}
		(*c)[k] = s
	}
	return nil
}

// flag reads a boolean; absent and empty is false.
func (c config) flag(name string) (bool, error) {
	v := c[name]
	if v == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		return false, wrong(name, v, "allowed are true and false")
	}
	return b, nil
}

// number reads a number within bounds; absent is 0.
func (c config) number(name string, from, to int64) (int64, error) {
	v := c[name]
	if v == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < from || n > to {
		return 0, wrong(name, v, fmt.Sprintf("allowed are %d to %d", from, to))
	}
	return n, nil
}

// list reads what stands between commas.
func (c config) list(name string) []string {
	var out []string
	for _, x := range strings.Split(c[name], ",") {
		if x = strings.TrimSpace(x); x != "" {
			out = append(out, x)
		}
	}
	return out
}

// sources are parameters that say what a volume is made of; one may be given.
var sources = []string{"import_volume_name", "import_vol_as_clone", "clone_of", "virtual_copy_of"}

// check refuses parameters that are wrong whatever the array is.
func (c config) check() error {
	proto := c["access_protocol"]
	switch proto {
	case "", protoISCSI, protoFC, protoNVMe, protoFile:
	default:
		return wrong("access_protocol", proto, "allowed are iscsi, fc, nvmetcp and nfs")
	}
	switch c["provisioning_type"] {
	case "", "tpvv", "full", "dedup", "reduce":
	default:
		return wrong("provisioning_type", c["provisioning_type"], "allowed are tpvv, full, dedup and reduce")
	}
	for _, n := range []string{"compression", "host_sees_vlun", "one_rcg_per_pvc", "allow_batch_replicated_volume_creation", "multi_initiator"} {
		if _, err := c.flag(n); err != nil {
			return err
		}
	}
	for _, ip := range c.list("iscsi_portal_ips") {
		if _, err := netip.ParseAddr(ip); err != nil {
			return wrong("iscsi_portal_ips", c["iscsi_portal_ips"], "allowed are IP addresses between commas")
		}
		if proto != "" && proto != protoISCSI {
			return wrong("iscsi_portal_ips", c["iscsi_portal_ips"], "only with access_protocol iscsi")
		}
	}
	for _, p := range c.list("fc_ports_list") {
		if !isPort(p) {
			return wrong("fc_ports_list", c["fc_ports_list"], "allowed are ports node:slot:port between commas")
		}
		if proto != protoFC {
			return wrong("fc_ports_list", c["fc_ports_list"], "only with access_protocol fc")
		}
	}
	var made string
	for _, n := range sources {
		if c[n] == "" {
			continue
		}
		if made != "" {
			return wrong(n, c[n], "not with "+made)
		}
		made = n
	}
	one, _ := c.flag("one_rcg_per_pvc")
	switch group, devices := c["remote_copy_group"], c["replication_devices"]; {
	case group != "" && one:
		return wrong("remote_copy_group", group, "not with one_rcg_per_pvc")
	case (group != "" || one) && devices == "":
		return wrong("replication_devices", "", "required with remote_copy_group and one_rcg_per_pvc")
	case devices != "" && group == "" && !one:
		return wrong("remote_copy_group", "", "required with replication_devices, or one_rcg_per_pvc")
	case len(group) > maxGroupName:
		return wrong("remote_copy_group", group, fmt.Sprintf("allowed are %d bytes", maxGroupName))
	}
	if p := c["replication_policy"]; p != "" && p != policyActive {
		return wrong("replication_policy", p, "allowed is "+policyActive)
	} else if p != "" && c["replication_devices"] == "" {
		return wrong("replication_devices", "", "required with replication_policy")
	}
	if _, err := c.number("periodic_replication_interval", 15, 31622400); err != nil {
		return err
	}
	return c.checkFile()
}

// maxGroupName is how long the name of a remote copy group may be.
const maxGroupName = 22

func isPort(s string) bool {
	p := strings.Split(s, ":")
	return len(p) == 3 && !slices.ContainsFunc(p, func(n string) bool {
		v, err := strconv.Atoi(n)
		return err != nil || v < 0
	})
}

// provisioning of a new volume.
type provisioning struct{ tpvv, tdvv, reduce, compression bool }

// provisioning reads how a volume is provisioned on an array of a family.
func (c config) provisioning(threePAR bool) (p provisioning, err error) {
	if p.compression, err = c.flag("compression"); err != nil {
		return p, err
	}
	kind := c["provisioning_type"]
	if p.compression && !threePAR {
		return p, wrong("compression", "true", "on a 3PAR only")
	}
	if p.compression && kind == "full" {
		return p, wrong("compression", "true", "not with provisioning_type full")
	}
	switch kind {
	case "", "tpvv":
		p.tpvv = true
	case "full", "dedup":
		if !threePAR {
			return p, wrong("provisioning_type", kind, "on a 3PAR only")
		}
		p.tdvv = kind == "dedup"
	case "reduce":
		if threePAR {
			return p, wrong("provisioning_type", kind, "not on a 3PAR")
		}
		p.reduce = true
	}
	return p, nil
}

// sizeMiB rounds bytes up to what the array counts in.
func sizeMiB(bytes int64) (int64, error) {
	if bytes <= 0 {
		return 0, refuse(http.StatusBadRequest, "size is %d, allowed is what is positive", bytes)
	}
	return (bytes + 1<<20 - 1) >> 20, nil
}
