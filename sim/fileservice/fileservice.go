// Package fileservice is the file service of arrays: what the storage provider has
// shared as files is exported over NFS, at one address for each array, to the
// clients that its rules name. The content of a share is that of its virtual
// volume: it is there as long as that is, whoever mounts it.
package fileservice

import (
	"fmt"
	"net/netip"
	"path"
	"strings"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/csp"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/san"
)

// Service is the file service of all arrays of a network. It implements
// host.Exports.
type Service struct {
	san      *san.SAN
	byServer map[string]*san.Array
	servers  map[string]string // by array
}

var _ host.Exports = (*Service)(nil)

// New returns the file services of the arrays of a network.
func New(s *san.SAN) *Service {
	f := &Service{san: s, byServer: map[string]*san.Array{}, servers: map[string]string{}}
	for i, a := range s.Arrays() {
		server := fmt.Sprintf("198.18.2.%d", i+1) // RFC 2544: for test beds
		f.byServer[server], f.servers[a.Name()] = a, server
	}
	return f
}

// Address is the one of an array's file service; "" where there is no such array.
func (f *Service) Address(array string) string { return f.servers[array] }

// Source is what a node mounts of a virtual volume, as server:/path.
func (f *Service) Source(array, vv string) string {
	return f.servers[array] + ":" + csp.SharePath(vv)
}

// Share is what a virtual volume is shared as; false where it is no file volume.
// It is for san.Array.Look.
func Share(core *array.Array, v array.Volume) (csp.Share, bool) {
	s, ok := csp.ShareOf(v.Comment, nil)
	if !ok {
		return s, false
	}
	values, _ := core.Values(v.Name)
	return csp.ShareOf(v.Comment, values)
}

// Export implements host.Exports.
func (f *Service) Export(c host.Client, server, dir string) (e host.Export, err error) {
	a := f.byServer[server]
	if a == nil || f.san.IsCut(c.Node) {
		return e, host.ErrServerUnreachable
	}
	vv, ok := csp.SharedAt(dir)
	if !ok {
		return e, host.ErrNoExport
	}
	a.Look(func(core *array.Array) {
		if a.IsDown() {
			err = host.ErrServerUnreachable
			return
		}
		v, verr := core.Volume(vv)
		if verr != nil {
			err = host.ErrNoExport
			return
		}
		s, ok := Share(core, v)
		switch {
		case !ok, len(s.Rules) == 0:
			err = host.ErrNoExport
		case !Allows(s.Rules, c.Addresses):
			err = host.ErrExportAccess
		}
		e = host.Export{Image: v.Image, Bytes: v.SizeMiB << 20, ReadOnly: s.ReadOnly}
	})
	return e, err
}

// Open implements host.Exports.
func (f *Service) Open(image string) (disk.Image, error) { return f.san.Open(image) }

// Allows says whether rules let a client with these addresses mount. Names are
// nobody's: there is no DNS.
func Allows(rules, addresses []string) bool {
	for _, r := range rules {
		for _, a := range addresses {
			a, _, _ = strings.Cut(a, "/")
			if allows(r, a) {
				return true
			}
		}
	}
	return false
}

func allows(rule, address string) bool {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return false
	}
	if rule == "*" {
		return true
	}
	if p, err := netip.ParsePrefix(rule); err == nil {
		return p.Contains(ip)
	}
	if r, err := netip.ParseAddr(rule); err == nil {
		return r == ip
	}
	// 10.0.*.1?: each part by itself, so that a star doesn't reach over a dot.
	want, have := strings.Split(rule, "."), strings.Split(address, ".")
	if len(want) != len(have) {
		return false
	}
	for i := range want {
		if ok, err := path.Match(want[i], have[i]); err != nil || !ok {
			return false
		}
	}
	return true
}
