package san

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/csilab/csilab/driver/node"
)

// Release implements node.Backend. It flushes the map, then deletes its paths,
// then forgets the volume: whatever a crash leaves of this, a repeated call
// finds by the serial number.
func (s *SAN) Release(ctx context.Context, volume, device string) error {
	serials, err := s.heldSerials(volume)
	if err != nil {
		return err
	}
	if len(serials) == 0 && device != "" {
		// Staged by a driver that kept other notes.
		m, ok, err := s.behind(device)
		if err != nil || !ok {
			return err
		}
		return s.release(ctx, strings.TrimPrefix(m.uuid, mapPrefix+"3"))
	}
	for _, serial := range serials {
		h := s.holding(key(volume) + "-" + serial)
		others, err := s.heldByOthers(volume, serial)
		if err != nil {
			return err
		}
		if !others {
			if err := s.release(ctx, serial); err != nil {
				return err
			}
			if h.Protocol == fc {
				if err := s.remember(volume, serial); err != nil {
					return err
				}
			}
			if h.Scope != "volume" || h.Protocol != iSCSI {
				h.Arrays = nil // others may be behind its targets
			}
			for _, t := range h.targets() {
				if err := s.logout(ctx, t); err != nil {
					return err
				}
			}
		}
		if err := s.end(ctx, volume, serial, others); err != nil {
			return err
		}
	}
	return nil
}

// end drops the note of a volume that has left the node, with the paths that
// somebody has found of it meanwhile, unless others need them.
func (s *SAN) end(ctx context.Context, volume, serial string, others bool) error {
	give, err := s.notes.take(ctx)
	if err != nil {
		return err
	}
	defer give()
	if !others {
		if err := s.release(ctx, serial); err != nil {
			return err
		}
	}
	return s.drop(volume, serial)
}

// release takes a volume's map and paths off the node. It needs no turn: nothing
// here is another volume's.
func (s *SAN) release(ctx context.Context, serial string) error {
	// The second round is for a map that multipathd made again of paths that were
	// still there.
	for round := 0; ; round++ {
		b, err := s.look(serial, nil, true)
		if err != nil {
			return err
		}
		if b.mapped {
			if err := s.flush(ctx, b.own, 5); err != nil {
				return err
			}
		}
		for _, d := range b.disks {
			// In another volume's map it is what a reused LUN makes of a path, and has
			// no business there.
			if d.holder.dm != "" && !d.holder.multipath() {
				return fmt.Errorf("%w: %s, a path of the volume, is part of %s", node.ErrInUse, d.name, d.holder.dm)
			}
			if err := s.remove(d.name, "the volume leaves the node"); err != nil {
				return err
			}
		}
		if !b.mapped && len(b.disks) == 0 {
			return nil
		}
		if round == 5 {
			return fmt.Errorf("%w: %s comes back after its paths were deleted", node.ErrInUse, serial)
		}
		if round > 0 {
			if err := pause(ctx, time.Duration(round)*50*time.Millisecond); err != nil {
				return err
			}
		}
	}
}

// flush takes a map down that nothing uses. What udev opens for a moment after
// an unmount is waited for, as many times as told.
func (s *SAN) flush(ctx context.Context, m mpath, tries int) error {
	if m.held {
		return fmt.Errorf("%w: another device is on %s", node.ErrInUse, m.name)
	}
	var err error
	again := 50 * time.Millisecond
	for try := range tries {
		if try > 0 {
			if perr := pause(ctx, again); perr != nil {
				return fmt.Errorf("%w: %w", perr, err)
			}
			again *= 2
		}
		if _, err = s.run(ctx, "multipath", "-f", m.name); err == nil {
			return nil
		}
		if s.line(sysBlock, m.dm, "dm/uuid") != m.uuid {
			return nil
		}
		if try == 0 && !s.works(ctx, m) {
			// I/O that is queued for a path that never comes keeps a map in use.
			if _, qerr := s.run(ctx, "dmsetup", "message", m.name, "0", "fail_if_no_path"); qerr != nil {
				s.log.Warn("queue of a dead map", "map", m.name, "err", qerr)
			}
		}
	}
	return fmt.Errorf("%w: %w", node.ErrInUse, err)
}

// works says whether a map has a path that works.
func (s *SAN) works(ctx context.Context, m mpath) bool {
	states := s.checked(ctx)
	return slices.ContainsFunc(m.slaves, func(name string) bool {
		return usable(disk{name: name, state: s.line(sysBlock, name, "device/state")}, states)
	})
}
