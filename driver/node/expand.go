package node

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// NodeExpandVolume implements csi.NodeServer. It makes the device show its new
// size and grows the filesystem on it. It never shrinks: a volume that is as
// large already is OK.
func (s *Service) NodeExpandVolume(ctx context.Context, req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	volume := req.GetVolumeId()
	if err := need("volume_id", volume, "volume_path", req.GetVolumePath()); err != nil {
		return nil, err
	}
	want, limit := req.GetCapacityRange().GetRequiredBytes(), req.GetCapacityRange().GetLimitBytes()
	if want < 0 || limit < 0 || limit > 0 && want > limit {
		return nil, status.Errorf(codes.OutOfRange, "capacity_range has required_bytes %d and limit_bytes %d", want, limit)
	}
	if req.GetVolumeCapability() != nil {
		if _, err := s.parseAccess(req.GetVolumeCapability()); err != nil {
			// CSI spec, NodeExpandVolume errors: "Exceeds capabilities" is 3 here.
			return nil, status.Error(codes.InvalidArgument, status.Convert(err).Message())
		}
	}
	end, err := s.inflight.begin(volume, "NodeExpandVolume")
	if err != nil {
		return nil, err
	}
	defer end()
	at, err := s.look(ctx, volume, req.GetVolumePath())
	if err != nil {
		return nil, err
	}
	if at.share {
		// Its server has grown it, and clients see that by themselves.
		return &csi.NodeExpandVolumeResponse{CapacityBytes: want}, nil
	}
	device := at.device
	if at.block {
		if device, err = s.published(at.path); err != nil {
			return nil, status.Errorf(codes.NotFound, "device of volume %q at %s: %v", volume, at.path, err)
		}
	}
	if err := s.cfg.Backend.Rescan(ctx, device); err != nil {
		return nil, fail(ctx, codes.Internal, "rescan of %s: %w", device, err)
	}
	size, err := s.host.DeviceSize(device)
	if err != nil {
		return nil, fail(ctx, codes.Internal, "size: %w", err)
	}
	switch {
	case size < want:
		// Not OutOfRange, which callers take for "can never be done".
		return nil, status.Errorf(codes.Unavailable, "%s shows %d bytes, not yet the %d that are required", device, size, want)
	case limit > 0 && size > limit:
		return nil, status.Errorf(codes.OutOfRange, "%s has %d bytes, limit_bytes is %d", device, size, limit)
	}
	if !at.block {
		if at.ro {
			return nil, status.Errorf(codes.FailedPrecondition, "the filesystem at %s is mounted read-only and can't be grown", at.path)
		}
		if err := s.grow(device, at.path, at.kind); err != nil {
			return nil, fail(ctx, codes.Internal, "grow: %w", err)
		}
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: size}, nil
}
