package csp

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/csilab/csilab/sim/csp/wsapi"
)

// Node is what a cluster knows of a node: an HPENodeInfo.
type Node struct {
	Name, UUID        string
	IQNs, WWPNs, NQNs []string
}

// nodeOf is what is known of the node of a host_uuid: what that says itself,
// what a client told, or what the cluster has. An array's host may have been
// made by another version of the provider, under another name and with nothing
// that says whose it is: then its initiators tell (CON-4186, csi-driver#518).
func (s *Server) nodeOf(c *call, hostUUID string) hostBody {
	var b hostBody
	if strings.HasPrefix(strings.TrimSpace(hostUUID), "{") && json.Unmarshal([]byte(hostUUID), &b) == nil && b.UUID != "" {
		return b
	}
	uuid := uuidOf(hostUUID)
	if b, ok := c.on.hosts.toldOf(uuid); ok {
		return b
	}
	if f := s.cfg.NodeOf; f != nil {
		if n, ok := f(c.ctx, uuid); ok {
			return hostBody{UUID: uuid, Name: n.Name, IQNs: n.IQNs, WWPNs: n.WWPNs, NQNs: n.NQNs}
		}
	}
	return hostBody{UUID: uuid}
}

// has says whether an array's host has an initiator of the node.
func (b hostBody) has(h wsapi.Host) bool {
	for _, p := range protocols {
		theirs := pathsOf(p.name, h)
		if slices.ContainsFunc(b.initiators(p.name), func(n string) bool { return slices.Contains(theirs, n) }) {
			return true
		}
	}
	return false
}

// ownerOf finds whose an array's host is: by what is known, by its mark, or,
// where it has none, by the initiators of the node that is asked about. "" is
// nobody that is known.
func (s *Server) ownerOf(ctx context.Context, on *backend, a *wsapi.Client, host string, node hostBody) (string, error) {
	if uuid := on.hosts.ownerOf(host); uuid != "" || host == "" || strings.HasPrefix(host, "set:") {
		return uuid, nil
	}
	h, err := a.Host(ctx, host)
	if wsapi.NotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	uuid := ""
	if m, ok := markOf(h); ok {
		uuid = m.UUID
	} else if node.UUID != "" && node.has(h) {
		uuid = node.UUID
	}
	if uuid != "" {
		on.hosts.own(host, uuid)
	}
	return uuid, nil
}
