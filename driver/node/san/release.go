package san

import (
	"context"
	"errors"
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
		b, err := s.look()
		if err != nil {
			return err
		}
		if m, ok := s.mapOf(b, device); ok {
			return s.release(ctx, strings.TrimPrefix(m.uuid, mapPrefix+"3"))
		}
		return nil
	}
	for _, serial := range serials {
		h := s.holding(volume, serial)
		others, err := s.heldByOthers(volume, serial)
		if err != nil {
			return err
		}
		if !others {
			if err := s.release(ctx, serial); err != nil {
				return err
			}
			for _, t := range h.Targets {
				if err := s.logout(ctx, t); err != nil {
					return err
				}
			}
		}
		if err := s.drop(volume, serial); err != nil {
			return err
		}
	}
	return nil
}

// release takes a volume's map and paths off the node. It needs no turn: nothing
// here is another volume's.
func (s *SAN) release(ctx context.Context, serial string) error {
	// The second round is for a map that multipathd made again of paths that were
	// still there.
	for round := 0; ; round++ {
		b, err := s.look()
		if err != nil {
			return err
		}
		m, mapped := b.byUUID(mapUUID(serial))
		if mapped {
			if err := s.flush(ctx, m, b, 5); err != nil {
				return err
			}
		}
		left := false
		for _, d := range b.disks {
			if !slices.Contains(m.slaves, d.name) && d.wwn != serial {
				continue
			}
			left = true
			// In another volume's map it is what a reused LUN makes of a path, and has
			// no business there.
			if _, another := b.byDM(d.holder); d.holder != "" && !another {
				return fmt.Errorf("%w: %s, a path of the volume, is part of %s", node.ErrInUse, d.name, d.holder)
			}
			if err := s.remove(d.name, "the volume leaves the node"); err != nil {
				return err
			}
		}
		if !mapped && !left {
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
func (s *SAN) flush(ctx context.Context, m mpath, b bus, tries int) error {
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
		now, lerr := s.look()
		if lerr != nil {
			return errors.Join(err, lerr)
		}
		if _, there := now.byUUID(m.uuid); !there {
			return nil
		}
		if try == 0 && !s.works(ctx, m, b) {
			// I/O that is queued for a path that never comes keeps a map in use.
			if _, qerr := s.run(ctx, "dmsetup", "message", m.name, "0", "fail_if_no_path"); qerr != nil {
				s.log.Warn("queue of a dead map", "map", m.name, "err", qerr)
			}
		}
	}
	return fmt.Errorf("%w: %w", node.ErrInUse, err)
}

// works says whether a map has a path that works.
func (s *SAN) works(ctx context.Context, m mpath, b bus) bool {
	states := s.checked(ctx)
	return slices.ContainsFunc(b.disks, func(d disk) bool { return slices.Contains(m.slaves, d.name) && usable(d, states) })
}
