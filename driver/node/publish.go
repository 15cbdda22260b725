package node

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/mount-utils"
)

// NodePublishVolume implements csi.NodeServer. It binds the staging mount, or
// for a block volume the device node, to the target path.
//
// Crash safety: the target is made, then mounted. A read-only bind takes the
// kernel two steps, so a target that is writable though read-only was asked for
// may be what a crash left between them; it is taken off and made again, unless
// it is in use.
func (s *Service) NodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	volume := req.GetVolumeId()
	if err := need("volume_id", volume, "target_path", req.GetTargetPath()); err != nil {
		return nil, err
	}
	a, err := s.parseAccess(req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	if req.GetStagingTargetPath() == "" {
		return nil, status.Error(codes.FailedPrecondition, "staging_target_path: missing")
	}
	if err := absolute("target_path", req.GetTargetPath(), "staging_target_path", req.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	if a.block && (req.GetReadonly() || a.readOnly) {
		// A read-only bind mount of a device node doesn't keep anybody from
		// writing to the device.
		return nil, status.Error(codes.InvalidArgument, "readonly: not supported for a block volume")
	}
	end, err := s.inflight.begin(volume, "NodePublishVolume")
	if err != nil {
		return nil, err
	}
	defer end()
	target, err := s.resolve(req.GetTargetPath())
	if err != nil {
		return nil, fail(ctx, codes.Internal, "target_path: %w", err)
	}
	staging, err := s.resolve(req.GetStagingTargetPath())
	if err != nil {
		return nil, fail(ctx, codes.Internal, "staging_target_path: %w", err)
	}
	for _, p := range []string{target, staging} {
		if other, ok := s.known.other(p, volume); ok {
			return nil, status.Errorf(codes.FailedPrecondition, "%s holds volume %q", p, other)
		}
	}
	if target == staging {
		return nil, status.Errorf(codes.InvalidArgument, "target_path is %s, which is the staging_target_path", target)
	}
	v := Volume{ID: volume, PublishContext: req.GetPublishContext(), Context: req.GetVolumeContext(), Secrets: req.GetSecrets()}
	if a.fs, err = s.cfg.Backend.Filesystem(v); err != nil {
		return nil, fail(ctx, codes.Internal, "%w", err)
	}
	if a.fs.ReadOnly {
		if a.block {
			return nil, status.Error(codes.InvalidArgument, "readonly: the volume was published to this node for reading, which is not supported for a block volume")
		}
		a.readOnly = true
	}
	if err := a.suits(); err != nil {
		return nil, err
	}
	var staged mount.MountPoint
	if !a.block {
		// Before the device is looked for: a volume that was unstaged may have let
		// go of it.
		at, err := s.mountsAt(staging)
		if err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		} else if len(at) == 0 {
			return nil, status.Errorf(codes.FailedPrecondition, "the volume is not staged at %s", staging)
		}
		staged = at[len(at)-1]
	}
	if a.fs.Share != "" {
		if err := s.publishableShare(staging, staged, a, req.GetReadonly()); err != nil {
			return nil, err
		}
		if err := s.bind(ctx, binding{source: staging, target: target, staging: staging, staged: staged, options: bindOptions(a, req.GetReadonly())}, a.oneAtop); err != nil {
			return nil, err
		}
		s.known.put(target, volume)
		return &csi.NodePublishVolumeResponse{}, nil
	}
	device, err := s.cfg.Backend.Device(ctx, v, false)
	if err != nil {
		return nil, fail(ctx, codes.Internal, "device of volume %q: %w", volume, err)
	}
	b := binding{source: device, target: target, staging: staging}
	if !a.block {
		b.source = staging
		if err := s.publishable(staging, device, a, req.GetReadonly()); err != nil {
			return nil, err
		}
		b.options = bindOptions(a, req.GetReadonly())
	} else {
		b.file = true
		b.options = []string{"bind"}
	}
	if err := s.bind(ctx, b, a.oneAtop); err != nil {
		return nil, err
	}
	s.known.put(target, volume)
	return &csi.NodePublishVolumeResponse{}, nil
}

// publishable checks that the volume is what is staged, and usable as asked.
// Without it a bind mount would give the pod a directory of the node's own disk
// (kubernetes#86360).
func (s *Service) publishable(staging, device string, a access, readOnly bool) error {
	at, err := s.mountsAt(staging)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if len(at) == 0 {
		return status.Errorf(codes.FailedPrecondition, "the volume is not staged at %s", staging)
	}
	top := at[len(at)-1]
	if dead := s.alive(staging, top.Device); dead != nil {
		return status.Errorf(codes.FailedPrecondition, "what is staged at %s is dead: %v", staging, dead)
	}
	if !s.sameDevice(top.Device, device) {
		return status.Errorf(codes.FailedPrecondition, "%s is staged at %s, the volume is %s", top.Device, staging, device)
	}
	if a.fsType != "" && a.fsType != top.Type {
		return status.Errorf(codes.FailedPrecondition, "%s is staged as %s, the volume_capability asks for %s", staging, top.Type, a.fsType)
	}
	if isReadOnly(top) && !a.readOnly && !readOnly {
		return status.Errorf(codes.FailedPrecondition, "the filesystem at %s is read-only, a writable one was asked for", staging)
	}
	return nil
}

// bindOptions keeps those flags that are of a mount and not of a filesystem:
// only they can differ between two places of one filesystem.
func bindOptions(a access, readOnly bool) []string {
	o := []string{"bind"}
	for _, f := range a.flags {
		switch f {
		case "nosuid", "nodev", "noexec", "noatime", "nodiratime", "relatime", "strictatime":
			o = append(o, f)
		}
	}
	if readOnly || a.readOnly {
		o = append(o, "ro")
	}
	return o
}

type binding struct {
	source, target, staging string
	file                    bool             // the target is a file
	staged                  mount.MountPoint // of a share
	options                 []string
}

func (s *Service) bind(ctx context.Context, b binding, oneAtop bool) error {
	refs, err := s.refsOf(b.source, b.staged)
	if err != nil {
		return fail(ctx, codes.Internal, "%w", err)
	}
	if oneAtop {
		for _, r := range refs {
			if r != b.target && r != b.staging {
				return status.Errorf(codes.FailedPrecondition, "the volume is published at %s, and its access mode allows one target path", r)
			}
		}
	}
	at, err := s.mountsAt(b.target)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if len(at) > 0 {
		top := at[len(at)-1]
		if !slices.Contains(refs, b.target) {
			dead := s.dead(b.target, top)
			if dead == nil && b.file {
				// The node of a device that is gone: its number may be another disk's by
				// now, and the mount table has no name of it.
				_, dead = s.published(b.target)
			}
			if dead == nil {
				return status.Errorf(codes.AlreadyExists, "target_path %s has something else mounted (%s)", b.target, top.Device)
			}
			s.log.Warn("target path holds a dead mount", "path", b.target, "device", top.Device, "dead", dead)
			if _, err := s.unmountAll(b.target); err != nil {
				return status.Errorf(codes.Internal, "target_path %s holds a dead mount (%v): %v", b.target, dead, err)
			}
		} else {
			if b.file {
				return nil
			}
			wantRO, haveRO := slices.Contains(b.options, "ro"), isReadOnly(top)
			switch {
			case wantRO == haveRO:
				return nil
			case haveRO:
				return status.Errorf(codes.AlreadyExists, "target_path %s is published read-only, a writable one was asked for", b.target)
			}
			if err := s.host.Mounter().Unmount(b.target); err != nil {
				return status.Errorf(codes.AlreadyExists, "target_path %s is published writable, read-only was asked for: %v", b.target, err)
			}
		}
	}
	if b.file {
		err = s.makeFile(b.target)
	} else {
		err = s.makeDir(b.target)
	}
	if err != nil {
		return fail(ctx, codes.Internal, "target_path: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return fail(ctx, codes.Internal, "before the mount: %w", err)
	}
	if err := s.host.Mounter().Mount(b.source, b.target, "", b.options); err != nil {
		err = s.undo(err, b.target)
		if rerr := s.host.Remove(b.target); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
		return fail(ctx, codes.Internal, "bind mount: %w", err)
	}
	return nil
}

func (s *Service) makeDir(p string) error {
	if fi, err := s.host.Stat(p); err == nil && !fi.IsDir() {
		// What an earlier publish as a block device left.
		if err := s.host.Remove(p); err != nil {
			return err
		}
	}
	return s.host.MkdirAll(p, 0o750)
}

func (s *Service) makeFile(p string) error {
	fi, err := s.host.Stat(p)
	switch {
	case err == nil && fi.IsDir():
		if err := s.host.Remove(p); err != nil {
			return err
		}
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return s.host.WriteFile(p, nil, 0o600)
}

// NodeUnpublishVolume implements csi.NodeServer. It unmounts, then removes the
// target; a target that still holds files after that isn't a mount point and is
// left alone.
func (s *Service) NodeUnpublishVolume(ctx context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	volume := req.GetVolumeId()
	if err := need("volume_id", volume, "target_path", req.GetTargetPath()); err != nil {
		return nil, err
	}
	if err := absolute("target_path", req.GetTargetPath()); err != nil {
		return nil, err
	}
	end, err := s.inflight.begin(volume, "NodeUnpublishVolume")
	if err != nil {
		return nil, err
	}
	defer end()
	p, err := s.resolve(req.GetTargetPath())
	if err != nil {
		return nil, fail(ctx, codes.Internal, "target_path: %w", err)
	}
	if other, ok := s.known.other(p, volume); ok {
		return nil, status.Errorf(codes.FailedPrecondition, "target_path %s holds volume %q", p, other)
	}
	if _, err := s.unmountAll(p); err != nil {
		return nil, fail(ctx, codes.Internal, "unmount: %w", err)
	}
	if err := s.host.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fail(ctx, codes.Internal, "target_path: %w", err)
	}
	s.known.drop(p)
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// published finds the device node that is bound to a file.
func (s *Service) published(file string) (string, error) {
	devices, err := s.cfg.Backend.Devices()
	if err != nil {
		return "", err
	}
	if slices.Contains(devices, file) {
		return file, nil
	}
	for _, d := range devices {
		refs, err := s.refs(d)
		if err != nil {
			return "", err
		}
		if slices.Contains(refs, file) {
			return d, nil
		}
	}
	return "", errors.New("no device of " + strings.Join(devices, ", ") + " is bound there")
}
