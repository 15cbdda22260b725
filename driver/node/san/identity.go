package san

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strings"

	"k8s.io/utils/exec"
)

// maxNodeID is the CSI limit of a node id in bytes (NodeGetInfoResponse).
const maxNodeID = 256

// NodeID implements node.Backend. In a cluster with HPENodeInfo objects the node
// writes its own, and its id is the host's uuid; without, the id is the node
// itself as JSON: {"name", "uuid", "iqns", "wwpns"}. It has no addresses then:
// an id has 256 bytes, the arrays need no addresses of those who come over a
// storage network, and an id must stay as it is while addresses come and go.
//
// An initiator that another node claims too is refused: two hosts with one
// initiator see each other's volumes. It heals when the other's object is gone,
// or when one of the two gets a name of its own.
func (s *SAN) NodeID(ctx context.Context) (string, error) {
	n := NodeInfo{Name: s.cfg.NodeName}
	var err error
	if n.IQNs, err = s.iqns(); err != nil {
		return "", err
	}
	if n.WWPNs, err = s.wwpns(); err != nil {
		return "", err
	}
	if len(n.IQNs)+len(n.WWPNs) == 0 {
		return "", fmt.Errorf("the node has no initiator: neither a name in %s nor an adapter in %s", initiatorName, sysFCHost)
	}
	if s.cfg.Cluster == nil {
		if n.UUID, err = s.uuid(""); err != nil {
			return "", err
		}
		id, err := json.Marshal(n)
		if err != nil {
			return "", err
		}
		if len(id) > maxNodeID {
			return "", fmt.Errorf("the node has too many or too long names for a node id of %d bytes: %s", maxNodeID, id)
		}
		return string(id), nil
	}
	if n.Networks, err = s.networks(ctx); err != nil {
		return "", err
	}
	all, err := s.cfg.Cluster.NodeInfos(ctx)
	if err != nil {
		return "", fmt.Errorf("HPENodeInfo objects: %w", err)
	}
	// What volumes were exported to is kept, though the node may have lost its own
	// note of it.
	var before *NodeInfo
	known := ""
	if i := slices.IndexFunc(all, func(o NodeInfo) bool { return o.Name == n.Name }); i >= 0 {
		before, known = &all[i], all[i].UUID
	}
	if n.UUID, err = s.uuid(known); err != nil {
		return "", err
	}
	if err := s.unique(n, all); err != nil {
		return "", err
	}
	if before != nil && equal(*before, n) {
		return n.UUID, nil
	}
	if err := s.cfg.Cluster.PutNodeInfo(ctx, n); err != nil {
		return "", fmt.Errorf("HPENodeInfo %q: %w", n.Name, err)
	}
	// Another node may have looked, and written, at the same time. Then either of
	// the two that sees the other steps back.
	all, err = s.cfg.Cluster.NodeInfos(ctx)
	if err == nil {
		err = s.unique(n, all)
	}
	if err != nil {
		if before != nil {
			return "", errors.Join(err, s.cfg.Cluster.PutNodeInfo(ctx, *before))
		}
		return "", errors.Join(err, s.cfg.Cluster.DeleteNodeInfo(ctx, n.Name))
	}
	return n.UUID, nil
}

// unique checks that no other node claims what is this node's.
func (s *SAN) unique(n NodeInfo, all []NodeInfo) error {
	var errs []error
	for _, o := range all {
		if o.Name == n.Name {
			continue
		}
		for _, c := range []struct {
			kind         string
			mine, theirs []string
		}{{"iSCSI name", n.IQNs, o.IQNs}, {"WWPN", n.WWPNs, o.WWPNs}} {
			for _, x := range c.mine {
				if slices.ContainsFunc(c.theirs, func(y string) bool { return strings.EqualFold(wwpn(x), wwpn(y)) }) {
					errs = append(errs, fmt.Errorf("%s %s of node %q is node %q's too (HPENodeInfo)", c.kind, x, n.Name, o.Name))
				}
			}
		}
		if n.UUID == o.UUID {
			errs = append(errs, fmt.Errorf("host uuid %s of node %q is node %q's too (HPENodeInfo): remove %s on one of them", n.UUID, n.Name, o.Name, s.uuidFile()))
		}
	}
	return errors.Join(errs...)
}

func equal(a, b NodeInfo) bool {
	return a.Name == b.Name && a.UUID == b.UUID && slices.Equal(a.IQNs, b.IQNs) && slices.Equal(a.WWPNs, b.WWPNs) &&
		slices.Equal(a.NQNs, b.NQNs) && slices.Equal(a.Networks, b.Networks)
}

const initiatorName = "/etc/iscsi/initiatorname.iscsi"

// iqns are the iSCSI names of the node; none without iSCSI.
func (s *SAN) iqns() ([]string, error) {
	b, err := s.host.ReadFile(initiatorName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		k, v, ok := strings.Cut(strings.TrimSpace(line), "=")
		if v = strings.TrimSpace(v); ok && strings.TrimSpace(k) == "InitiatorName" && v != "" {
			out = append(out, v)
		}
	}
	return out, nil
}

// wwpns are the ports of the node's FC adapters, in order.
func (s *SAN) wwpns() ([]string, error) {
	hosts, err := s.names(sysFCHost, "host")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, h := range hosts {
		b, err := s.host.ReadFile(path.Join(sysFCHost, h, "port_name"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // that one was taken out
			return nil, err
		}
		if w := wwpn(strings.TrimSpace(string(b))); w != "" {
			out = append(out, w)
		}
	}
	slices.Sort(out)
	return out, nil
}

// networks are the node's addresses but for loopback and link-local ones, in
// order; none where there is no command for them. One that fails this once must
// not stand for no addresses: nobody asks again, and no share would be for the node.
func (s *SAN) networks(ctx context.Context) ([]string, error) {
	out, err := s.run(ctx, "ip", "-o", "addr", "show")
	var exit exec.ExitError
	if errors.Is(err, exec.ErrExecutableNotFound) || errors.As(err, &exit) && exit.ExitStatus() == notThere {
		s.log.Debug("addresses of the node", "err", err)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("addresses of the node: %w", err)
	}
	var all []string
	for line := range strings.Lines(out) {
		// 2: eth0    inet 10.0.0.11/24 brd 10.0.0.255 scope global eth0\ …
		f := strings.Fields(line)
		i := slices.IndexFunc(f, func(w string) bool { return w == "inet" || w == "inet6" })
		if i < 0 || i+1 == len(f) {
			continue
		}
		p, err := netip.ParsePrefix(f[i+1])
		if err == nil && !p.Addr().IsLoopback() && !p.Addr().IsLinkLocalUnicast() {
			all = append(all, p.String())
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// notThere is the status of a shell or nsenter that finds no such command.
const notThere = 127

func (s *SAN) uuidFile() string { return path.Join(s.cfg.StateDir, "host-uuid") }

// uuid is the host's, made once and kept: in a file, else as known (from
// HPENodeInfo), else of the machine's data as upstream makes it, so that the
// same machine gets the same one.
func (s *SAN) uuid(known string) (string, error) {
	b, err := s.host.ReadFile(s.uuidFile())
	switch id := strings.TrimSpace(string(b)); {
	case err == nil && isUUID(id):
		return id, nil
	case err == nil:
		// What a crash left of the first write.
		s.log.Warn("host uuid is made again", "file", s.uuidFile(), "was", id)
	case !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("host uuid: %w", err)
	}
	id := known
	if id == "" {
		id = makeUUID(s.machine() + s.cfg.NodeName)
	}
	if err := s.host.MkdirAll(s.cfg.StateDir, 0o755); err != nil {
		return "", fmt.Errorf("host uuid: %w", err)
	}
	if err := s.host.WriteFile(s.uuidFile(), []byte(id+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("host uuid: %w", err)
	}
	return id, nil
}

// machine is what tells this machine from others, besides its name: the first
// hardware address in order, else systemd's machine id. MD5 of it and the name
// is what upstream's ids are (csi-driver issue 270: clones of a virtual machine
// differ in the name only, renamed ones in the address).
func (s *SAN) machine() string {
	cards, _ := s.names("/sys/class/net", "")
	var macs []string
	for _, c := range cards {
		// Bridges and tunnels have addresses of the moment.
		if _, err := s.host.Stat(path.Join("/sys/class/net", c, "device")); err != nil {
			continue
		}
		if mac := strings.ReplaceAll(s.line("/sys/class/net", c, "address"), ":", ""); strings.Trim(mac, "0") != "" {
			macs = append(macs, mac)
		}
	}
	if len(macs) == 0 {
		return s.line("/etc/machine-id")
	}
	return slices.Min(macs)
}

func makeUUID(of string) string {
	sum := md5.Sum([]byte(of))
	h := hex.EncodeToString(sum[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

func isUUID(s string) bool {
	h := strings.ReplaceAll(s, "-", "")
	_, err := hex.DecodeString(h)
	return err == nil && len(h) == 32
}
