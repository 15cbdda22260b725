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

// checkCapabilities returns nil when a volume can satisfy all of them at once.
func (s *server) checkCapabilities(caps []*csi.VolumeCapability) error {
	if len(caps) == 0 {
		return required("volume_capabilities")
	}
	for i, c := range caps {
		if err := s.checkCapability(c, fmt.Sprintf("volume_capabilities[%d]", i)); err != nil {
			return err
		}
	}
	return nil
}

// checkCapability checks one. A block volume is for one node: reading it on a
// second while the first writes would read rubbish, and the backend refuses a
// second attachment anyhow.
func (s *server) checkCapability(c *csi.VolumeCapability, field string) error {
	if c == nil {
		return required(field)
	}
	switch mode := c.GetAccessMode().GetMode(); mode {
	case csi.VolumeCapability_AccessMode_UNKNOWN:
		return required(field + ".access_mode")
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
	default:
		return Errorf(Invalid, "%s.access_mode %s: not supported, a volume is for one node at a time: SINGLE_NODE_* is allowed", field, mode)
	}
	switch t := c.GetAccessType().(type) {
	case *csi.VolumeCapability_Block:
		return nil
	case *csi.VolumeCapability_Mount:
		fs := strings.ToLower(t.Mount.GetFsType())
		if fs != "" && !slices.Contains(s.cfg.FSTypes, fs) {
			return Errorf(Invalid, "%s.mount.fs_type %q: not supported, allowed: %s", field, fs, strings.Join(s.cfg.FSTypes, ", "))
		}
		return nil
	}
	return required(field + ".access_type")
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
	bytes = (low + g - 1) / g * g
	if limit > 0 && bytes > limit {
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
	if bytes == 0 {
		return 0, Errorf(OutOfRange, "capacity_range.limit_bytes %d: a volume has at least %d", limit, s.cfg.Granularity)
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
