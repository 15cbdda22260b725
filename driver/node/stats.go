package node

import (
	"context"
	"errors"
	"io/fs"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// NodeGetVolumeStats implements csi.NodeServer: bytes and inodes of a
// filesystem, the size of a block device.
func (s *Service) NodeGetVolumeStats(ctx context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if err := need("volume_id", req.GetVolumeId(), "volume_path", req.GetVolumePath()); err != nil {
		return nil, err
	}
	at, err := s.look(ctx, req.GetVolumeId(), req.GetVolumePath())
	if err != nil {
		return nil, err
	}
	if at.block {
		size, err := s.host.DeviceSize(at.path)
		if err != nil {
			return nil, fail(ctx, codes.Internal, "size: %w", err)
		}
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: size}}}, nil
	}
	u, err := s.host.Statfs(at.path)
	if err != nil {
		return nil, fail(ctx, codes.Internal, "statfs: %w", err)
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: u.TotalBytes, Available: u.AvailableBytes, Used: u.TotalBytes - u.FreeBytes},
		{Unit: csi.VolumeUsage_INODES, Total: u.TotalInodes, Available: u.FreeInodes, Used: u.TotalInodes - u.FreeInodes},
	}}, nil
}

// place is where a volume was found.
type place struct {
	path   string // resolved
	block  bool
	share  bool
	device string // of a filesystem
	kind   string // of a filesystem
	ro     bool   // of a filesystem
}

// look finds what a volume_path holds. Anything but a mounted filesystem or a
// block device is NotFound: "a volume … does not exist on specified
// volume_path" (CSI spec, NodeGetVolumeStats errors).
func (s *Service) look(ctx context.Context, volume, volumePath string) (place, error) {
	nothing := func() (place, error) {
		return place{}, status.Errorf(codes.NotFound, "volume %q is not at volume_path %q", volume, volumePath)
	}
	if !strings.HasPrefix(volumePath, "/") {
		return nothing()
	}
	p, err := s.resolve(volumePath)
	if err != nil {
		return place{}, fail(ctx, codes.Internal, "volume_path: %w", err)
	}
	if _, ok := s.known.other(p, volume); ok {
		return nothing()
	}
	if at, err := s.mountsAt(p); err == nil && len(at) > 0 && isShare(at[len(at)-1]) {
		top := at[len(at)-1]
		if err := s.answers(p); err != nil {
			return place{}, fail(ctx, codes.Internal, "volume_path: %w", err)
		}
		return place{path: p, device: top.Device, kind: top.Type, share: true, ro: isReadOnly(top)}, nil
	}
	fi, err := s.host.Stat(p)
	if errors.Is(err, fs.ErrNotExist) {
		return nothing()
	}
	if err != nil {
		return place{}, fail(ctx, codes.Internal, "volume_path: %w", err)
	}
	// kubelet gives a link to the device, or to the mount, in some places.
	if r, err := s.host.EvalSymlinks(p); err == nil {
		p = r
	}
	if isBlock(fi) {
		return place{path: p, block: true}, nil
	}
	at, err := s.mountsAt(p)
	if err != nil {
		return place{}, status.Error(codes.Internal, err.Error())
	}
	if len(at) == 0 {
		return nothing()
	}
	top := at[len(at)-1]
	return place{path: p, device: top.Device, kind: top.Type, ro: isReadOnly(top)}, nil
}
