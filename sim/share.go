package sim

import (
	"net"
	"strings"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/fileservice"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/invariant"
)

// Shares of file servers, which nodes mount in place of devices. What a device's
// serial is to a volume, server:/path is to a share.

// isShare tells the source of a share from a device and a serial.
func isShare(source string) bool { return strings.Contains(source, ":/") }

// publishedAs is what a publish context names: a serial, or a share.
func (l *Lab) publishedAs(context map[string]string) string {
	if dir := context["mountPath"]; dir != "" {
		server := context["exportIP"]
		if strings.Contains(server, ":") {
			server = "[" + server + "]"
		}
		return server + ":" + dir
	}
	return context[l.facts().serial]
}

// sharesOf are the shares of an array that are for certain nodes: those whose
// address is among the rules. It is for san.Array.Look.
func (b *hpe) sharesOf(name string, core *array.Array) (out []invariant.Export) {
	for _, v := range core.Volumes() {
		out = append(out, b.shareOf(name, core, v)...)
	}
	return out
}

// shareOf is what sharesOf is, of one volume.
func (b *hpe) shareOf(name string, core *array.Array, v array.Volume) (out []invariant.Export) {
	if !b.comment(v).isShare {
		return nil
	}
	s, ok := fileservice.Share(core, v)
	if !ok {
		return nil
	}
	var rules []string
	for _, r := range s.Rules {
		if net.ParseIP(r) != nil {
			rules = append(rules, r)
		}
	}
	id, _ := b.known(v)
	for _, m := range b.nodes {
		if fileservice.Allows(rules, m.adapters.Networks) {
			out = append(out, invariant.Export{VolumeID: id, Node: m.name, Serial: b.files.Source(name, v.Name)})
		}
	}
	return out
}

// shareSource is what nodes mount of a file volume; "" where it is none.
func (b *hpe) shareSource(id string) (source string) {
	a, v, err := b.find(id)
	if err != nil {
		return ""
	}
	a.Look(func(core *array.Array) {
		if _, ok := fileservice.Share(core, v); ok {
			source = b.files.Source(a.Name(), v.Name)
		}
	})
	return source
}

// shareSize is the size of a share that a node has mounted, as the node sees it; 0
// where its server would not answer.
func (n *Node) shareSize(path, source string) int64 {
	b, ok := n.lab.backend.(*hpe)
	if !ok {
		return 0
	}
	server, dir, _ := strings.Cut(source, ":/")
	if _, err := b.files.Export(host.Client{Node: n.Name, Addresses: b.addresses(n.Name)}, server, "/"+dir); err != nil {
		return 0
	}
	u, err := n.host.Statfs(path)
	if err != nil {
		return 0
	}
	return u.TotalBytes
}

func (b *hpe) addresses(node string) []string {
	for _, m := range b.nodes {
		if m.name == node {
			return m.adapters.Networks
		}
	}
	return nil
}

// CanMountShares says whether the nodes can mount shares of a file server, and why
// not.
func (l *Lab) CanMountShares() error {
	for _, n := range l.nodes {
		if err := n.host.Supports("nfs"); err != nil {
			return err
		}
	}
	return nil
}
