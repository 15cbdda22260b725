package san

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// A boot finds over Fibre Channel what is exported to the node and was never
// staged there, too. Where it is not staged later either, but unexported, no call
// is about it, and its dead paths would stay until the next boot.
//
// Strays looks, every so often, at what was on the node when the driver started
// and is no volume that the node holds, and takes off what has left its array: its
// paths are connected and none leads anywhere. What its array still presents stays,
// whosever it is. Strays returns when nothing is left to look at, or ctx ends.
// Errors are logged, and what they are about is tried again; one of the first look
// at the next start.
func (s *SAN) Strays(ctx context.Context, every time.Duration) {
	left, err := s.strays()
	if err != nil {
		s.log.Warn("what the node has and nobody holds", "err", err)
	}
	for len(left) > 0 && pause(ctx, every) == nil {
		states := s.checked(ctx)
		left = slices.DeleteFunc(left, func(serial string) bool {
			done, err := s.quit(ctx, serial, states)
			if err != nil && ctx.Err() == nil {
				s.log.Warn("volume that nobody holds", "serial", serial, "err", err)
			}
			return done && err == nil
		})
	}
}

// strays are the serial numbers of the arrays' volumes that are on the node and
// that it does not hold.
func (s *SAN) strays() ([]string, error) {
	names, err := s.names(sysBlock, "sd")
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for _, n := range names {
		if serial := s.wwn(n); serial != "" && !found[serial] && s.line(sysBlock, n, "device/vendor") == "3PARdata" {
			found[serial] = true
		}
	}
	var out []string
	for _, serial := range slices.Sorted(maps.Keys(found)) {
		held, err := s.holds(serial)
		if err != nil {
			return nil, err
		}
		if !held {
			out = append(out, serial)
		}
	}
	return out, nil
}

// holds says whether the node holds a volume with this serial number.
func (s *SAN) holds(serial string) (bool, error) {
	held, err := s.names(s.holdings(), "")
	if err != nil {
		return false, fmt.Errorf("notes of volumes: %w", err)
	}
	return slices.ContainsFunc(held, func(h string) bool { return strings.HasSuffix(h, "-"+serial) }), nil
}

// quit takes a volume that nobody holds off the node once it has left its array;
// done: there is nothing to look at any more.
func (s *SAN) quit(ctx context.Context, serial string, states map[string]string) (done bool, err error) {
	give, err := s.turn.take(ctx) // nobody begins to hold it meanwhile
	if err != nil {
		return false, err
	}
	defer give()
	held, err := s.holds(serial)
	if held || err != nil { // a call will let go of it
		return held, err
	}
	b, err := s.look(serial, nil, true)
	if err != nil {
		return false, err
	}
	for _, d := range b.disks {
		if d.state != "running" || states[d.name] != "faulty" {
			return false, nil // its port is away, or it is there
		}
	}
	if b.mapped && b.own.held {
		return false, nil
	}
	return len(b.disks) == 0 && !b.mapped, s.release(ctx, serial)
}
