package node

import (
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// filesystems that volumes are formatted with.
var filesystems = []string{"ext4", "ext3", "xfs"}

// access is a volume capability that was checked.
type access struct {
	block    bool
	fsType   string // "" when the caller didn't say
	flags    []string
	readOnly bool // by access mode or by the mount flag ro
	oneAtop  bool // one target path at most
	// manyNodes: mounted on several nodes at once. See suits.
	manyNodes bool
	fs        Filesystem
}

// want is the filesystem to make on a blank device.
func (a access) want() string {
	switch {
	case a.fsType != "":
		return a.fsType
	case a.fs.Type != "":
		return a.fs.Type
	}
	return "ext4"
}

// parseAccess checks a capability. A missing one is InvalidArgument; one that a
// volume of this backend can't have is FailedPrecondition (CSI spec,
// NodeStageVolume and NodePublishVolume errors, "Exceeds capabilities").
func (s *Service) parseAccess(c *csi.VolumeCapability) (access, error) {
	var a access
	if c == nil {
		return a, status.Error(codes.InvalidArgument, "volume_capability: missing")
	}
	switch t := c.GetAccessType().(type) {
	case *csi.VolumeCapability_Block:
		a.block = true
	case *csi.VolumeCapability_Mount:
		m := t.Mount
		a.fsType = strings.ToLower(m.GetFsType())
		if a.fsType != "" && !slices.Contains(filesystems, a.fsType) {
			return a, status.Errorf(codes.FailedPrecondition, "volume_capability.mount.fs_type is %q, allowed are %s", m.GetFsType(), strings.Join(filesystems, ", "))
		}
		if g := m.GetVolumeMountGroup(); g != "" {
			return a, status.Errorf(codes.InvalidArgument, "volume_capability.mount.volume_mount_group is %q: not supported", g)
		}
		for _, f := range m.GetMountFlags() {
			for o := range strings.SplitSeq(f, ",") {
				if o = strings.TrimSpace(o); o == "" || slices.Contains(a.flags, o) {
					continue
				}
				switch o {
				case "bind", "rbind", "move", "remount":
					return a, status.Errorf(codes.InvalidArgument, "volume_capability.mount.mount_flags has %q, which is the driver's own", o)
				}
				a.flags = append(a.flags, o)
			}
		}
		a.readOnly = slices.Contains(a.flags, "ro")
	default:
		return a, status.Error(codes.InvalidArgument, "volume_capability.access_type: missing, allowed are block and mount")
	}
	switch m := c.GetAccessMode().GetMode(); m {
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
		// CSI spec, second table of NodePublishVolume: with the capability
		// SINGLE_NODE_MULTI_WRITER a second target is for that mode only.
		a.oneAtop = true
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:
		a.oneAtop, a.readOnly = true, true
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
	case csi.VolumeCapability_AccessMode_UNKNOWN:
		return a, status.Error(codes.InvalidArgument, "volume_capability.access_mode: missing")
	case csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER, csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		if !a.block && s.traits.Shares {
			a.manyNodes = true
			break
		}
		if !s.traits.SharedBlock {
			return a, status.Errorf(codes.FailedPrecondition, "volume_capability.access_mode is %s: a block volume is for one node at a time (SINGLE_NODE_*)", m)
		}
		if !a.block {
			return a, status.Errorf(codes.FailedPrecondition, "volume_capability.access_mode is %s: a filesystem is for one node at a time (SINGLE_NODE_*), only a raw block volume may be shared", m)
		}
	default:
		if m == csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY && !a.block && s.traits.Shares {
			a.manyNodes, a.readOnly = true, true
			break
		}
		return a, status.Errorf(codes.FailedPrecondition, "volume_capability.access_mode is %s: a block volume is for one node at a time (SINGLE_NODE_*)", m)
	}
	return a, nil
}

// need is InvalidArgument for the first field that is empty. Fields are pairs
// of name and value.
func need(fields ...string) error {
	for i := 0; i < len(fields); i += 2 {
		if fields[i+1] == "" {
			return status.Errorf(codes.InvalidArgument, "%s: missing", fields[i])
		}
	}
	return nil
}

// absolute is InvalidArgument for a path that isn't. Fields are pairs of name
// and value.
func absolute(fields ...string) error {
	for i := 0; i < len(fields); i += 2 {
		if !strings.HasPrefix(fields[i+1], "/") {
			return status.Errorf(codes.InvalidArgument, "%s is %q, must be an absolute path", fields[i], fields[i+1])
		}
	}
	return nil
}
