package san

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/csilab/csilab/driver/node"
)

// Keys of the publish context, as the controller side writes them.
const (
	KeySerial       = "serialNumber"
	KeyProtocol     = "accessProtocol"
	KeyTargets      = "targetNames"
	KeyScope        = "targetScope"
	KeyLUN          = "lunId"
	KeyDiscoveryIPs = "discoveryIps"
	KeyPeers        = "secondaryArrayDetailsKey"
	KeyExportIP     = "exportIP"
	KeyMountPath    = "mountPath"
)

// Access protocols.
const (
	iSCSI = "iscsi"
	fc    = "fc"
	nfs   = "nfs" // a share of the array's file service
)

// maxLUN is the largest LUN of the arrays.
const maxLUN = 16383

// export is how a volume was exported to this node.
type export struct {
	serial   string // 16 or 32 lower case hex digits
	protocol string // iSCSI or fc
	// scope "volume": a target per volume, left with it; else sessions are shared.
	scope  string
	arrays []array
}

// array is one of the arrays that a volume is exported by: a second one only
// where it is replicated between two (Peer Persistence).
type array struct {
	lun     int
	targets []string // iSCSI names, or WWPNs of ports, lower case
	ips     []string // to discover targets at
}

// uuid is device-mapper's for the volume's multipath map: the type of the
// identifier (3: NAA) and the identifier.
func (e export) uuid() string { return mapUUID(e.serial) }

func mapUUID(serial string) string { return mapPrefix + "3" + serial }

// mapPrefix starts the uuid of each multipath map.
const mapPrefix = "mpath-"

// accepts says whether a volume is expected at a LUN, seen at a target ("" when
// the target isn't known). The number differs between two arrays.
func (e export) accepts(target string, lun int) bool {
	known := false
	for _, a := range e.arrays {
		if slices.Contains(a.targets, target) {
			known = true
			if a.lun == lun {
				return true
			}
		}
	}
	// A port of the array that wasn't named, such as one that the host was logged
	// in at before.
	return !known && e.hasLUN(lun)
}

func (e export) hasLUN(lun int) bool {
	return slices.ContainsFunc(e.arrays, func(a array) bool { return a.lun == lun })
}

// parse reads a publish context. All errors are node.ErrContext.
func parse(c map[string]string) (export, error) {
	bad := func(key, allowed string) error {
		return fmt.Errorf("%w: publish_context[%q] is %q, must be %s", node.ErrContext, key, c[key], allowed)
	}
	var e export
	// Upper case is what some arrays' interfaces show.
	e.serial = strings.ToLower(c[KeySerial])
	if b, err := hex.DecodeString(e.serial); err != nil || len(b) != 8 && len(b) != 16 {
		return e, bad(KeySerial, "a WWN of 16 or 32 hex digits")
	}
	switch e.protocol = strings.ToLower(c[KeyProtocol]); e.protocol {
	case "":
		e.protocol = iSCSI // as for the controller
	case iSCSI, fc:
	default:
		return e, bad(KeyProtocol, "iscsi or fc")
	}
	switch e.scope = strings.ToLower(c[KeyScope]); e.scope {
	case "", "group", "volume":
	default:
		return e, bad(KeyScope, "group or volume")
	}
	lun, err := strconv.Atoi(c[KeyLUN])
	if err != nil || lun < 0 || lun > maxLUN {
		return e, bad(KeyLUN, fmt.Sprintf("0 to %d", maxLUN))
	}
	e.arrays = []array{{lun: lun, targets: list(c[KeyTargets]), ips: list(c[KeyDiscoveryIPs])}}
	if e.protocol == iSCSI {
		if len(e.arrays[0].targets) == 0 {
			return e, bad(KeyTargets, "a comma-separated list of iSCSI names")
		}
		if len(e.arrays[0].ips) == 0 {
			return e, bad(KeyDiscoveryIPs, "a comma-separated list of addresses")
		}
	}
	peers, err := parsePeers(c[KeyPeers])
	if err != nil {
		return e, fmt.Errorf("%w: publish_context[%q]: %w", node.ErrContext, KeyPeers, err)
	}
	e.arrays = append(e.arrays, peers...)
	return e, nil
}

func parsePeers(s string) ([]array, error) {
	if s == "" {
		return nil, nil
	}
	var in struct {
		Peers []struct {
			LUN     *int     `json:"lun_id"`
			Targets []string `json:"target_names"`
			IPs     []string `json:"discovery_ips"`
		} `json:"PeerArrayDetails"`
	}
	if err := json.Unmarshal([]byte(s), &in); err != nil {
		return nil, err
	}
	var out []array
	for i, p := range in.Peers {
		if p.LUN == nil || *p.LUN < 0 || *p.LUN > maxLUN {
			return nil, fmt.Errorf("PeerArrayDetails[%d].lun_id: must be 0 to %d", i, maxLUN)
		}
		out = append(out, array{lun: *p.LUN, targets: list(strings.Join(p.Targets, ",")), ips: list(strings.Join(p.IPs, ","))})
	}
	return out, nil
}

// list splits a comma-separated list; iSCSI names and WWNs are lower case
// (RFC 3722 folds names).
func list(s string) []string {
	var out []string
	for e := range strings.SplitSeq(s, ",") {
		e = strings.ToLower(strings.TrimSpace(e))
		e = strings.TrimPrefix(e, "0x")
		if e != "" && !slices.Contains(out, e) {
			out = append(out, e)
		}
	}
	return out
}
