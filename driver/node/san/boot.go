package san

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// A Fibre Channel adapter finds all that is exported to the node when it boots.
// A volume that has left the node, but whose export is not ended yet, has its
// paths back then, and no call will be about them: its unstage is done. Once the
// LUN is another volume's they would lead there. So each volume that was let go
// of over FC has a file in <state>/released, named as in <state>/volumes, until
// a start of the driver finds the volume off the node.

func (s *SAN) releases() string { return path.Join(s.cfg.StateDir, "released") }

// remember notes that a volume was let go of.
func (s *SAN) remember(volume, serial string) error {
	if err := s.host.MkdirAll(s.releases(), 0o700); err != nil {
		return fmt.Errorf("note of a volume that left: %w", err)
	}
	if err := s.host.WriteFile(path.Join(s.releases(), key(volume)+"-"+serial), nil, 0o600); err != nil {
		return fmt.Errorf("note of a volume that left: %w", err)
	}
	return nil
}

// AfterBoot lets go once more of what has left the node and is back, as after a
// boot between unstage and the end of the export. Call it when the driver starts;
// calls may come meanwhile. What is staged again stays. Errors are logged, and
// what they are about is tried again at the next start.
func (s *SAN) AfterBoot(ctx context.Context) {
	names, err := s.names(s.releases(), "")
	if err != nil {
		s.log.Warn("notes of volumes that left", "err", err)
		return
	}
	for _, n := range names {
		if err := s.leave(ctx, n); err != nil {
			s.log.Warn("volume that is back after it left the node", "note", n, "err", err)
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// leave lets go of what a note is about, or forgets it where that is off the node.
func (s *SAN) leave(ctx context.Context, note string) error {
	_, serial, ok := strings.Cut(note, "-")
	if !ok {
		return nil // nobody's
	}
	// Nobody begins to hold it meanwhile.
	give, err := s.turn.take(ctx)
	if err != nil {
		return err
	}
	defer give()
	held, err := s.holds(serial)
	if err != nil {
		return err
	}
	if held { // it came back by a call, which will let go of it
		return s.forget(note)
	}
	b, err := s.look(serial, nil, true)
	if err != nil {
		return err
	}
	if !b.mapped && len(b.disks) == 0 {
		return s.forget(note)
	}
	return s.release(ctx, serial) // the next boot may find it again
}

func (s *SAN) forget(note string) error {
	if err := s.host.Remove(path.Join(s.releases(), note)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("note of a volume that left: %w", err)
	}
	return nil
}
