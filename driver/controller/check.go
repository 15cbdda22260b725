package controller

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// required says that a field of a request is missing.
func required(field string) error { return Errorf(Invalid, "%s is missing", field) }

// maxString is the general limit of a string field in bytes, CSI
// specification "Size Limits".
const maxString = 128

// checkName checks a name that the caller chose. The banned characters are
// those of CreateVolumeRequest.name.
func checkName(name string) error {
	switch {
	case name == "":
		return required("name")
	case len(name) > maxString:
		return Errorf(Invalid, "name has %d bytes, allowed: up to %d", len(name), maxString)
	case !utf8.ValidString(name):
		return Errorf(Invalid, "name is not UTF-8")
	}
	for _, r := range name {
		if r <= 0x08 || r == 0x0b || r == 0x0c || r >= 0x0e && r <= 0x1f || r >= 0x7f && r <= 0x9f {
			return Errorf(Invalid, "name %q holds the control character %U", name, r)
		}
	}
	return nil
}

// accessOf reads the capabilities of a request, all of which a volume must
// satisfy at once.
func (s *server) accessOf(caps []*csi.VolumeCapability) (Access, error) {
	if len(caps) == 0 {
		return Access{}, required("volume_capabilities")
	}
	all := Access{ReadOnly: true}
	for i, c := range caps {
		field := fmt.Sprintf("volume_capabilities[%d]", i)
		one, err := s.access(c, field)
		if err != nil {
			return Access{}, err
		}
		if all.FSType != "" && one.FSType != "" && all.FSType != one.FSType {
			return Access{}, Errorf(Invalid, "%s.mount.fs_type %q: another capability asks for %q, a volume has one file system", field, one.FSType, all.FSType)
		}
		if one.FSType != "" {
			all.FSType = one.FSType
		}
		all.Block, all.Mount = all.Block || one.Block, all.Mount || one.Mount
		all.Shared, all.ReadOnly = all.Shared || one.Shared, all.ReadOnly && one.ReadOnly
		all.SharedMount = all.SharedMount || one.SharedMount
	}
	return all, nil
}

// access reads one capability. A volume with a file system is for one node:
// reading it on a second while the first writes would read rubbish. A raw block
// volume may be for several where the backend can do that, since who uses it so
// (a virtual machine that moves, a cluster file system) takes care. So does the
// server of a share of files.
func (s *server) access(c *csi.VolumeCapability, field string) (a Access, err error) {
	if c == nil {
		return a, required(field)
	}
	fs := strings.ToLower(c.GetMount().GetFsType())
	switch c.GetAccessType().(type) {
	case *csi.VolumeCapability_Block:
		a.Block = true
	case *csi.VolumeCapability_Mount:
		a.Mount, a.FSType = true, fs
	}
	mode := c.GetAccessMode().GetMode()
	if mode == csi.VolumeCapability_AccessMode_UNKNOWN {
		return a, required(field + ".access_mode")
	}
	if !a.Block && !a.Mount {
		return a, required(field + ".access_type")
	}
	switch mode {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:
		a.ReadOnly = true
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
	case csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		a.Shared = true
		a.ReadOnly = mode == csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
		a.SharedMount = a.Mount
		switch {
		case a.Mount && s.can.SharedFiles:
		case !s.can.SharedBlock:
			return a, Errorf(Invalid, "%s.access_mode %s: not supported, a volume is for one node at a time: SINGLE_NODE_* is allowed", field, mode)
		case !a.Block:
			return a, Errorf(Invalid, "%s.access_mode %s: not supported for a volume with a file system, which is for one node at a time: SINGLE_NODE_* is allowed, and any mode for a block volume", field, mode)
		}
	default:
		return a, Errorf(Invalid, "%s.access_mode %s: not supported, a volume is for one node at a time: SINGLE_NODE_* is allowed", field, mode)
	}
	if fs != "" && !slices.Contains(s.cfg.FSTypes, fs) {
		return a, Errorf(Invalid, "%s.mount.fs_type %q: not supported, allowed: %s", field, fs, strings.Join(s.cfg.FSTypes, ", "))
	}
	return a, nil
}

// sizeOf reads a capacity range: bytes is the size to make, rounded up to the
// granularity, 0 when the range asks for none; min and limit are what fits.
func (s *server) sizeOf(r *csi.CapacityRange) (bytes, low, limit int64, err error) {
	low, limit = r.GetRequiredBytes(), r.GetLimitBytes()
	switch {
	case low < 0:
		return 0, 0, 0, Errorf(OutOfRange, "capacity_range.required_bytes %d: negative", low)
	case limit < 0:
		return 0, 0, 0, Errorf(OutOfRange, "capacity_range.limit_bytes %d: negative", limit)
	case limit > 0 && low > limit:
		return 0, 0, 0, Errorf(OutOfRange, "capacity_range: required_bytes %d is more than limit_bytes %d", low, limit)
	case low > s.cfg.MaxBytes:
		return 0, 0, 0, Errorf(OutOfRange, "capacity_range.required_bytes %d: a volume has at most %d", low, s.cfg.MaxBytes)
	}
	g := s.cfg.Granularity
	if bytes = (low + g - 1) / g * g; bytes > 0 && bytes < s.cfg.MinBytes {
		bytes = s.cfg.MinBytes
	}
	if limit > 0 && bytes > limit {
		if bytes == s.cfg.MinBytes {
			return 0, 0, 0, Errorf(OutOfRange, "capacity_range.limit_bytes %d: a volume has at least %d", limit, bytes)
		}
		return 0, 0, 0, Errorf(OutOfRange, "capacity_range: no multiple of %d bytes lies between required_bytes %d and limit_bytes %d", g, low, limit)
	}
	return bytes, low, limit, nil
}

// defaultSize is the size of an empty volume for which none is asked.
func (s *server) defaultSize(limit int64) (int64, error) {
	bytes := s.cfg.DefaultBytes
	if limit > 0 && bytes > limit {
		bytes = limit / s.cfg.Granularity * s.cfg.Granularity
	}
	if bytes < s.cfg.MinBytes {
		return 0, Errorf(OutOfRange, "capacity_range.limit_bytes %d: a volume has at least %d", limit, s.cfg.MinBytes)
	}
	return bytes, nil
}

// checkPage checks the fields of a listing.
func checkPage(maxEntries int32, token string) (Page, error) {
	if maxEntries < 0 {
		return Page{}, Errorf(Invalid, "max_entries %d: negative", maxEntries)
	}
	return Page{Max: int(maxEntries), Token: token}, nil
}
