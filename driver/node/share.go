package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/mount-utils"
)

// A volume may be a share of a file server in place of a device: it is mounted at
// the staging path over NFS and bound from there, like a filesystem. There is
// nothing to look for, to format and to let go of, and several nodes may have it.
//
// Mounts are hard: whoever looks at one whose server doesn't answer waits, and
// nothing ends that. So the mount table is asked in place of the mount, and where
// the mount has to be, in a goroutine that may be left behind.

// shareType is what shares are mounted as, upstream's
// (hpe-storage/common-host-libs, MountNFSVolume).
const shareType = "nfs4"

// patience is how long a mounted share may take to answer.
const patience = 5 * time.Second

var errNoAnswer = errors.New("its server does not answer")

// isShare says whether a mount is one of a file server.
func isShare(m mount.MountPoint) bool { return m.Type == "nfs" || m.Type == shareType }

// suits refuses what a share, or a volume that is none, can't be used as.
func (a access) suits() error {
	switch {
	case a.fs.Share != "" && a.block:
		return status.Error(codes.FailedPrecondition, "volume_capability.access_type is block: the volume is a share of files, mount is allowed")
	case a.fs.Share == "" && a.manyNodes:
		return status.Error(codes.FailedPrecondition, "volume_capability.access_mode is MULTI_NODE_*: a filesystem is for one node at a time (SINGLE_NODE_*), only a raw block volume or a share of files may be shared")
	}
	return nil
}

// answers looks at a mount: nil, what is wrong with it, or errNoAnswer.
func (s *Service) answers(p string) error {
	done := make(chan error, 1)
	go func() {
		_, err := s.host.Stat(p)
		done <- err
	}()
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case err := <-done:
		return err
	case <-t.C:
		return errNoAnswer
	}
}

// dead says what is wrong with a mount, or nil.
func (s *Service) dead(p string, m mount.MountPoint) error {
	if !isShare(m) {
		return s.alive(p, m.Device)
	}
	if err := s.answers(p); broken(err) || errors.Is(err, errNoAnswer) {
		return err
	}
	return nil
}

// refsOf are the other places where what is mounted at p is.
func (s *Service) refsOf(p string, m mount.MountPoint) ([]string, error) {
	if !isShare(m) {
		return s.refs(p)
	}
	all, err := s.host.Mounter().List()
	if err != nil {
		return nil, fmt.Errorf("mount table: %w", err)
	}
	var out []string
	for _, x := range all {
		if at := unescape.Replace(x.Path); isShare(x) && x.Device == m.Device && at != p && !slices.Contains(out, at) {
			out = append(out, at)
		}
	}
	slices.Sort(out)
	return out, nil
}

// stageShare mounts a share at the staging path.
func (s *Service) stageShare(ctx context.Context, p string, a access) error {
	at, err := s.mountsAt(p)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if len(at) > 0 {
		again, err := s.stagedShare(p, at[len(at)-1], a)
		if err != nil || !again {
			return err
		}
	}
	if err := s.host.MkdirAll(p, 0o750); err != nil {
		return fail(ctx, codes.Internal, "staging_target_path: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return fail(ctx, codes.Internal, "before the mount: %w", err)
	}
	if err := s.host.Mounter().Mount(a.fs.Share, p, shareType, stageOptions(shareType, a)); err != nil {
		return fail(ctx, codes.Internal, "mount: %w", s.undo(err, p))
	}
	return nil
}

// stagedShare judges what is mounted at the staging path: nil and false when it is
// what is asked for, true when it was dead and has been taken off.
func (s *Service) stagedShare(p string, top mount.MountPoint, a access) (again bool, err error) {
	switch dead := s.dead(p, top); {
	case errors.Is(dead, errNoAnswer) && top.Device == a.fs.Share:
		// Nothing is better for mounting it again, and pods may wait in it.
		return false, status.Errorf(codes.Unavailable, "%s is mounted at %s: %v", top.Device, p, dead)
	case dead != nil:
		s.log.Warn("staging path holds a dead mount", "path", p, "device", top.Device, "dead", dead)
		if _, err := s.unmountAll(p); err != nil {
			return false, status.Errorf(codes.Internal, "%s holds a dead mount (%v): %v", p, dead, err)
		}
		return true, nil
	case !isShare(top) || top.Device != a.fs.Share:
		return false, status.Errorf(codes.AlreadyExists, "%s has %s mounted, the volume is %s", p, top.Device, a.fs.Share)
	}
	if d := differ(top.Opts, stageOptions(shareType, a)); d != "" {
		return false, status.Errorf(codes.AlreadyExists, "%s is staged with other mount flags: %s", p, d)
	}
	return false, nil
}

// publishableShare checks that the share is what is staged, and usable as asked.
func (s *Service) publishableShare(staging string, top mount.MountPoint, a access, readOnly bool) error {
	switch dead := s.dead(staging, top); {
	case errors.Is(dead, errNoAnswer):
		return status.Errorf(codes.Unavailable, "%s is staged at %s: %v", top.Device, staging, dead)
	case dead != nil:
		return status.Errorf(codes.FailedPrecondition, "what is staged at %s is dead: %v", staging, dead)
	case !isShare(top) || top.Device != a.fs.Share:
		return status.Errorf(codes.FailedPrecondition, "%s is staged at %s, the volume is %s", top.Device, staging, a.fs.Share)
	case isReadOnly(top) && !a.readOnly && !readOnly:
		return status.Errorf(codes.FailedPrecondition, "the share at %s is mounted read-only, a writable one was asked for", staging)
	}
	return nil
}

// unstageShare unmounts a share that no target has any more.
func (s *Service) unstageShare(ctx context.Context, volume, p string, top mount.MountPoint) error {
	refs, err := s.refsOf(p, top)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if len(refs) > 0 {
		return status.Errorf(codes.FailedPrecondition, "volume %q is still published at %s", volume, strings.Join(refs, ", "))
	}
	if _, err := s.unmountAll(p); err != nil {
		return fail(ctx, codes.Internal, "unmount: %w", err)
	}
	return nil
}

// unmountShare takes a mount of a share off, lazily where it is dead: umount(2)
// asks the server nothing, but says that a mount is busy under who waits for it.
func (s *Service) unmountShare(p string, m mount.MountPoint) error {
	err := s.host.Mounter().Unmount(p)
	if err == nil {
		return nil
	}
	dead := s.dead(p, m)
	if dead == nil {
		return err
	}
	s.log.Warn("detaching a dead mount lazily", "path", p, "device", m.Device, "dead", dead, "err", err)
	_, err = s.run("umount", "-l", p)
	return err
}
