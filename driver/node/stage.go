package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/mount-utils"
)

// NodeStageVolume implements csi.NodeServer. A filesystem volume is mounted at
// the staging path, formatted before when it is blank, and grown to its device.
// For a block volume only the device is looked for.
//
// Crash safety: a device that must be let go of is held before it is looked
// for; formatting comes before the mount and is repeated as long as the device
// is blank; the mount is the last step that leaves something behind, and growing
// and the owner of the root directory are repeated by each call.
func (s *Service) NodeStageVolume(ctx context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	volume := req.GetVolumeId()
	if err := need("volume_id", volume, "staging_target_path", req.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	a, err := s.parseAccess(req.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	if err := absolute("staging_target_path", req.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	end, err := s.inflight.begin(volume, "NodeStageVolume")
	if err != nil {
		return nil, err
	}
	defer end()
	p, err := s.resolve(req.GetStagingTargetPath())
	if err != nil {
		return nil, fail(ctx, codes.Internal, "staging_target_path: %w", err)
	}
	if other, ok := s.known.other(p, volume); ok {
		return nil, status.Errorf(codes.FailedPrecondition, "staging_target_path %s holds volume %q", p, other)
	}
	v := Volume{ID: volume, PublishContext: req.GetPublishContext(), Context: req.GetVolumeContext(), Secrets: req.GetSecrets()}
	if a.fs, err = s.cfg.Backend.Filesystem(v); err != nil {
		return nil, fail(ctx, codes.Internal, "%w", err)
	}
	a.readOnly = a.readOnly || a.fs.ReadOnly
	if err := a.suits(); err != nil {
		return nil, err
	}
	if err := s.stage(ctx, v, p, a); err != nil {
		if final(err) && s.idle(volume, p) {
			s.abandon(ctx, volume)
		}
		return nil, err
	}
	s.known.put(p, volume)
	return &csi.NodeStageVolumeResponse{}, nil
}

func (s *Service) stage(ctx context.Context, v Volume, p string, a access) error {
	if a.fs.Share != "" {
		return s.stageShare(ctx, p, a)
	}
	device, err := s.cfg.Backend.Device(ctx, v, true)
	if err != nil {
		return fail(ctx, codes.Internal, "device of volume %q: %w", v.ID, err)
	}
	if a.block {
		return s.stageBlock(p, device)
	}
	return s.stageMount(ctx, v.ID, p, device, a)
}

// final says whether the orchestrator takes an error for the end of the call,
// and doesn't undo it (k8s v1.37, pkg/volume/csi/csi_client.go, isFinalError).
func final(err error) bool {
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return false
	}
	return true
}

// idle says whether a held volume is neither staged nor published, as far as can
// be told.
func (s *Service) idle(volume, p string) bool {
	device, held, err := s.cfg.Backend.Held(volume)
	if err != nil || !held {
		return false
	}
	if at, err := s.mountsAt(p); err != nil || len(at) > 0 {
		return false
	}
	if device == "" {
		return true
	}
	refs, err := s.refs(device)
	return err == nil && len(refs) == 0
}

// abandon lets go of a volume whose staging failed for good: nobody is going to
// unstage it, and the controller may give what it leaves on the node (a LUN)
// to another volume.
func (s *Service) abandon(ctx context.Context, volume string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := s.cfg.Backend.Release(ctx, volume, ""); err != nil {
		s.log.Warn("the device of a volume that could not be staged stays on the node", "volume", volume, "err", err)
	}
}

func (s *Service) stageBlock(p, device string) error {
	at, err := s.mountsAt(p)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if len(at) > 0 && s.sameDevice(at[len(at)-1].Device, device) {
		return status.Errorf(codes.AlreadyExists, "%s is staged at %s as a filesystem, a block volume was asked for", device, p)
	}
	return nil
}

func (s *Service) stageMount(ctx context.Context, volume, p, device string, a access) error {
	at, err := s.mountsAt(p)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if len(at) > 0 {
		top := at[len(at)-1]
		again, err := s.staged(p, top, device, a)
		if err != nil {
			return err
		}
		if !again {
			if a.readOnly {
				return nil
			}
			// An earlier call may have ended after the mount. Once it is
			// published it was staged whole, and growing it is NodeExpandVolume's.
			if refs, err := s.refs(p); err == nil && len(refs) > 0 {
				return nil
			}
			if err := s.fit(ctx, device, p, top.Type, a); err != nil {
				return err
			}
			if err := s.own(p, a.fs); err != nil {
				return fail(ctx, codes.Internal, "root directory of the volume: %w", err)
			}
			return nil
		}
	}
	// The orchestrator makes the directory; one that was lost is made again, and
	// one that vanishes from now on makes the mount fail.
	if err := s.host.MkdirAll(p, 0o750); err != nil {
		return fail(ctx, codes.Internal, "staging_target_path: %w", err)
	}
	kind, err := s.format(device)
	if errors.As(err, new(leftover)) && s.intents.begun(volume) {
		s.log.Warn("a mkfs of this volume was interrupted and is repeated", "device", device, "volume", volume)
		kind, err = "", nil
	}
	if err != nil {
		return fail(ctx, codes.Internal, "%w", err)
	}
	if err := ctx.Err(); err != nil {
		return fail(ctx, codes.Internal, "before formatting: %w", err)
	}
	made := kind == ""
	switch {
	case made && a.readOnly:
		return status.Errorf(codes.FailedPrecondition, "%s is blank and was asked for read-only, so it can't be formatted", device)
	case made:
		kind = a.want()
		s.log.Info("formatting", "device", device, "fs", kind)
		if err := s.intents.begin(volume); err != nil {
			return fail(ctx, codes.Internal, "%w", err)
		}
		if err := s.makeFS(device, kind, a.fs.Create); err != nil {
			return fail(ctx, codes.Internal, "%w", err)
		}
	case a.fsType != "" && a.fsType != kind:
		return status.Errorf(codes.FailedPrecondition, "%s holds %s, the volume_capability asks for %s", device, kind, a.fsType)
	case !slices.Contains(filesystems, kind):
		return status.Errorf(codes.FailedPrecondition, "%s holds %s, allowed are %s", device, kind, strings.Join(filesystems, ", "))
	case !a.readOnly:
		if err := s.check(device, kind, a.fs.Repair); err != nil {
			return fail(ctx, codes.Internal, "%w", err)
		}
	}
	if err := s.intents.end(volume); err != nil { // before a pod can write
		return fail(ctx, codes.Internal, "%w", err)
	}
	if err := ctx.Err(); err != nil {
		return fail(ctx, codes.Internal, "before the mount: %w", err)
	}
	if err := s.mount(device, p, kind, a); err != nil {
		return fail(ctx, codes.Internal, "mount: %w", s.undo(err, p))
	}
	if a.readOnly {
		return nil
	}
	if !made {
		if err := s.fit(ctx, device, p, kind, a); err != nil {
			return status.Error(status.Code(err), s.undo(errors.New(status.Convert(err).Message()), p).Error())
		}
	}
	if err := s.own(p, a.fs); err != nil {
		return fail(ctx, codes.Internal, "root directory of the volume: %w", s.undo(err, p))
	}
	return nil
}

// mount mounts a device, and repairs an xfs that can't be mounted where that
// was asked for: fsck.xfs(8) does nothing before.
func (s *Service) mount(device, p, kind string, a access) error {
	err := s.host.Mounter().Mount(device, p, kind, stageOptions(kind, a))
	if err == nil || kind != "xfs" || !a.fs.Repair || a.readOnly {
		return err
	}
	if _, uerr := s.unmountAll(p); uerr != nil {
		return errors.Join(err, uerr)
	}
	s.log.Warn("xfs can't be mounted and is repaired", "device", device, "err", err)
	if _, rerr := s.run("xfs_repair", device); rerr != nil {
		return errors.Join(err, rerr)
	}
	return s.host.Mounter().Mount(device, p, kind, stageOptions(kind, a))
}

// own gives the root directory of a mounted volume its owner and mode.
func (s *Service) own(p string, fs Filesystem) error {
	if o := fs.Owner; o != nil {
		if err := s.host.Lchown(p, o.UID, o.GID); err != nil {
			return err
		}
	}
	if fs.Mode != nil {
		return s.host.Chmod(p, *fs.Mode)
	}
	return nil
}

// fit grows the filesystem that was just staged to its device, which is larger
// after a restore or an expansion without a pod. Where the kernel refuses to
// grow a mounted ext3 or ext4 (some do, even for root) it is done unmounted,
// since nobody has it published yet.
func (s *Service) fit(ctx context.Context, device, p, kind string, a access) error {
	err := s.grow(device, p, kind)
	if err == nil {
		return nil
	}
	if kind == "xfs" {
		return fail(ctx, codes.Internal, "grow: %w", err)
	}
	s.log.Warn("growing while mounted failed, growing unmounted", "device", device, "err", err)
	if uerr := s.host.Mounter().Unmount(p); uerr != nil {
		return fail(ctx, codes.Internal, "grow: %w", errors.Join(err, uerr))
	}
	if gerr := s.growUnmounted(device); gerr != nil {
		return fail(ctx, codes.Internal, "grow: %w", errors.Join(err, gerr))
	}
	if merr := s.host.Mounter().Mount(device, p, kind, stageOptions(kind, a)); merr != nil {
		return fail(ctx, codes.Internal, "mount: %w", s.undo(merr, p))
	}
	return nil
}

// undo takes what a failed call mounted off again: the caller takes Internal for
// final and won't make the reverse call.
func (s *Service) undo(err error, p string) error {
	_, uerr := s.unmountAll(p)
	return errors.Join(err, uerr)
}

// staged judges what is mounted at the staging path: nil and false when it is
// what is asked for, true when it was dead and has been taken off.
func (s *Service) staged(p string, top mount.MountPoint, device string, a access) (again bool, err error) {
	if dead := s.alive(p, top.Device); dead != nil {
		s.log.Warn("staging path holds a dead mount", "path", p, "device", top.Device, "dead", dead)
		if _, err := s.unmountAll(p); err != nil {
			return false, status.Errorf(codes.Internal, "%s holds a dead mount (%v): %v", p, dead, err)
		}
		return true, nil
	}
	if !s.sameDevice(top.Device, device) {
		return false, status.Errorf(codes.AlreadyExists, "%s has %s mounted, the volume is %s", p, top.Device, device)
	}
	if a.fsType != "" && a.fsType != top.Type {
		return false, status.Errorf(codes.AlreadyExists, "%s is staged as %s, the volume_capability asks for %s", p, top.Type, a.fsType)
	}
	if isReadOnly(top) && !a.readOnly {
		// Either it was staged read-only, or the kernel made it so after an error.
		// Nobody who has it published can be served by a mount that is taken away.
		refs, err := s.refs(p)
		if err != nil {
			return false, status.Error(codes.Internal, err.Error())
		}
		if len(refs) > 0 {
			return false, status.Errorf(codes.AlreadyExists, "%s is staged read-only and still published at %s", p, strings.Join(refs, ", "))
		}
		s.log.Warn("staged read-only, wanted writable: staging again", "path", p, "device", device)
		if _, err := s.unmountAll(p); err != nil {
			return false, status.Errorf(codes.Internal, "%s is staged read-only: %v", p, err)
		}
		return true, nil
	}
	if d := differ(top.Opts, stageOptions(top.Type, a)); d != "" {
		return false, status.Errorf(codes.AlreadyExists, "%s is staged with other mount flags: %s", p, d)
	}
	return false, nil
}

// stageOptions are the options of the staging mount. A clone of an xfs volume
// has its source's UUID, which the kernel refuses to mount twice.
func stageOptions(kind string, a access) []string {
	o := slices.Clone(a.flags)
	if a.readOnly && !slices.Contains(o, "ro") {
		o = append(o, "ro")
	}
	if kind == "xfs" && !slices.Contains(o, "nouuid") {
		o = append(o, "nouuid")
	}
	return o
}

// visible are the flags that the mount table shows under the name that mount(8)
// takes, so that two sets of them can be compared.
var visible = []string{"ro", "nosuid", "nodev", "noexec", "noatime", "nodiratime", "sync", "dirsync"}

// differ names the first visible flag that only one of two sets has.
func differ(have, want []string) string {
	for _, f := range visible {
		switch h, w := slices.Contains(have, f), slices.Contains(want, f); {
		case h && !w:
			return fmt.Sprintf("has %s", f)
		case !h && w:
			return fmt.Sprintf("lacks %s", f)
		}
	}
	return ""
}

func isReadOnly(m mount.MountPoint) bool { return slices.Contains(m.Opts, "ro") }

// NodeUnstageVolume implements csi.NodeServer. It makes sure of the device once
// more, unmounts, then takes the device off the node where the backend has to. The directory is the orchestrator's and
// stays.
//
// Crash safety: a held volume stays held until its device is gone, so that a
// repeated call knows what to let go of though nothing is mounted any more.
func (s *Service) NodeUnstageVolume(ctx context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	volume := req.GetVolumeId()
	if err := need("volume_id", volume, "staging_target_path", req.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	if err := absolute("staging_target_path", req.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	end, err := s.inflight.begin(volume, "NodeUnstageVolume")
	if err != nil {
		return nil, err
	}
	defer end()
	p, err := s.resolve(req.GetStagingTargetPath())
	if err != nil {
		return nil, fail(ctx, codes.Internal, "staging_target_path: %w", err)
	}
	if other, ok := s.known.other(p, volume); ok {
		return nil, status.Errorf(codes.FailedPrecondition, "staging_target_path %s holds volume %q", p, other)
	}
	device, held, err := s.cfg.Backend.Held(volume)
	if err != nil {
		return nil, fail(ctx, codes.Internal, "volume %q: %w", volume, err)
	}
	at, err := s.mountsAt(p)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if len(at) > 0 && isShare(at[len(at)-1]) {
		if err := s.unstageShare(ctx, volume, p, at[len(at)-1]); err != nil {
			return nil, err
		}
		s.known.drop(p)
		return &csi.NodeUnstageVolumeResponse{}, nil
	}
	if len(at) > 0 && !held {
		device = at[len(at)-1].Device
	}
	if held && device != "" {
		// A raw block volume: its device node is bound to the targets.
		refs, err := s.refs(device)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, status.Error(codes.Internal, err.Error())
		}
		if len(refs) > 0 {
			return nil, status.Errorf(codes.FailedPrecondition, "volume %q is still published at %s", volume, strings.Join(refs, ", "))
		}
	}
	if len(at) > 0 && s.alive(p, at[len(at)-1].Device) == nil {
		// A volume that is still published would keep its device in use while the
		// orchestrator takes the success for leave to detach it.
		refs, err := s.refs(p)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, status.Error(codes.Internal, err.Error())
		}
		if len(refs) > 0 {
			return nil, status.Errorf(codes.FailedPrecondition, "volume %q is still published at %s", volume, strings.Join(refs, ", "))
		}
	}
	if device != "" {
		// The unmount writes what the node has in its memory; where to, only the
		// backend knows.
		if err := s.cfg.Backend.Verify(ctx, device); err != nil {
			return nil, fail(ctx, codes.Internal, "device of volume %q: %w", volume, err)
		}
	}
	if _, err := s.unmountAll(p); err != nil {
		return nil, fail(ctx, codes.Internal, "unmount: %w", err)
	}
	if err := s.cfg.Backend.Release(ctx, volume, device); err != nil {
		return nil, fail(ctx, codes.Internal, "device of volume %q: %w", volume, err)
	}
	s.known.drop(p)
	return &csi.NodeUnstageVolumeResponse{}, nil
}
