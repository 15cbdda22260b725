package san

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/csilab/csilab/driver/apart"
	"github.com/csilab/csilab/driver/node"
)

// Device implements node.Backend. It returns the node of the multipath map whose
// identity is the volume's, all of whose paths have said that they are the
// volume's, and of which one at least works.
func (s *SAN) Device(ctx context.Context, v node.Volume, wait bool) (string, error) {
	e, err := parse(v.PublishContext)
	if err != nil {
		return "", err
	}
	if !wait {
		m, mapped, err := s.mapOf(e.serial)
		if err == nil && mapped {
			err = s.verify(ctx, m)
		}
		if err != nil {
			return "", err
		}
		return s.find(ctx, e)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.Wait+apart.By(e.serial), fmt.Errorf("waited %s", s.cfg.Wait))
	defer cancel()
	var c chap
	if e.protocol == iSCSI {
		if c, err = s.chapOf(ctx, v); err != nil {
			return "", err
		}
	}
	before, err := s.begin(ctx, v, e, c)
	if err != nil {
		return "", err
	}
	dev, err := s.await(ctx, e)
	if err != nil {
		s.tidy(context.WithoutCancel(ctx), e, before)
	} else if e.protocol == iSCSI && len(s.missing(e)) > 0 {
		s.lacking.add(key(v.ID)+"-"+e.serial, c)
	}
	return dev, err
}

// begin notes the volume, takes off the node what stands in its place, and logs in,
// all in one turn: who gave it back in between would ask for the next together with
// whom he gave it to, and chance would say who is first. before is what was on the
// node then.
func (s *SAN) begin(ctx context.Context, v node.Volume, e export, c chap) (before bus, err error) {
	give, err := s.turn.take(ctx)
	if err != nil {
		return before, s.late(ctx, err)
	}
	defer give()
	// With the turn: nobody decides meanwhile whose paths may go.
	if err := s.hold(v, e); err != nil {
		return before, err
	}
	if err := s.clean(ctx, e, true); err != nil {
		return before, err
	}
	if before, err = s.look(e.serial, e.luns(), false); err != nil || e.protocol != iSCSI {
		return before, err
	}
	if err := s.login(ctx, e, c); err != nil {
		s.strip(e, before)
		return before, s.late(ctx, err)
	}
	return before, nil
}

// await scans, and waits for the map.
func (s *SAN) await(ctx context.Context, e export) (string, error) {
	var last time.Duration
	for again := 20 * time.Millisecond; ; again = min(2*again, 2*time.Second) {
		// A LUN shows up in a scan only, and only where no stale device stands in its
		// place.
		if last == 0 || last >= time.Second {
			if last > 0 {
				if err := s.again(ctx, e); err != nil {
					return "", err
				}
			}
			if err := s.scan(e); err != nil {
				s.log.Warn("scan", "serial", e.serial, "err", err)
			}
			last = 0
		}
		dev, err := s.find(ctx, e)
		if err == nil || !errors.Is(err, node.ErrNoDevice) {
			return dev, err
		}
		if pause(ctx, again+apart.By(e.serial)) != nil {
			return "", s.late(ctx, s.broken(e, err))
		}
		last += again
	}
}

// again is clean before a further scan.
func (s *SAN) again(ctx context.Context, e export) error {
	give, err := s.turn.take(ctx)
	if err != nil {
		return s.late(ctx, err)
	}
	defer give()
	return s.clean(ctx, e, false)
}

// late adds to an error why waiting has ended, when that is so. The device may
// come yet.
func (s *SAN) late(ctx context.Context, err error) error {
	switch {
	case ctx.Err() == nil:
		return err
	case errors.Is(err, node.ErrNoDevice):
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return fmt.Errorf("%w: %w: %w", node.ErrNoDevice, context.Cause(ctx), err)
}

// broken adds to an error which sessions of a volume have lost their connection:
// the node has them, and tries to connect again with the credentials of the
// login.
func (s *SAN) broken(e export, err error) error {
	names, _ := s.names(sysSession, "session")
	for _, n := range names {
		t, state := s.iscsiName(n), s.line(sysSession, n, "state")
		if state != "LOGGED_IN" && slices.ContainsFunc(e.arrays, func(a array) bool { return slices.Contains(a.targets, t) }) {
			err = fmt.Errorf("%w; the session to %s is %s", err, t, state)
		}
	}
	return err
}

// tidy deletes what scans for a volume that isn't there have found in its place:
// paths of other volumes, which nobody would ever take off the node. Those of
// volumes that are held stay.
func (s *SAN) tidy(ctx context.Context, e export, before bus) {
	give, err := s.turn.take(ctx)
	if err != nil {
		return
	}
	defer give()
	s.strip(e, before)
}

// strip is tidy with the turn.
func (s *SAN) strip(e export, before bus) {
	b, err := s.look(e.serial, e.luns(), false)
	if err != nil {
		s.log.Warn("paths of other volumes may stay", "err", err)
		return
	}
	for _, d := range b.disks {
		_, old := before.disk(d.name)
		if old || d.wwn == e.serial || !d.remote() || !e.hasLUN(d.lun) {
			continue
		}
		held, err := s.heldByOthers("", d.wwn)
		if err == nil && !held {
			err = s.remove(d.name, "found in place of the volume")
		}
		if err != nil {
			s.log.Warn("path of another volume stays", "disk", d.name, "err", err)
		}
	}
}

// clean takes paths off the node that would carry the volume's I/O elsewhere, or
// stand in the way of a path to it. Each that may is asked who it is: what the
// kernel has of it is of the time when it was found.
//
// With flush, a map of the volume that has no path left that works is taken down
// too, with its paths, so that the scan makes them anew. One that is in use
// stays; paths that come are added to it. Paths that have no map, such as a
// release that was cut short leaves, go too: multipathd looks at a path when it
// comes. It needs the turn.
func (s *SAN) clean(ctx context.Context, e export, flush bool) error {
	b, err := s.look(e.serial, e.luns(), true)
	if err != nil {
		return err
	}
	own, mapped := b.own, b.mapped
	var errs []error
	var kept []disk
	for _, d := range b.disks {
		member := mapped && slices.Contains(own.slaves, d.name)
		if !member && d.wwn != e.serial && !(e.hasLUN(d.lun) && d.remote()) {
			continue
		}
		now, err := s.inquire(d)
		if errors.Is(err, errSilent) {
			// It carries no I/O either. The map has it, and where it leads to is asked
			// when the volume is published or leaves.
			if member {
				kept = append(kept, d)
			}
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		why := e.misleads(d, now, member)
		if why == "" && flush && now == e.serial && d.holder.dm == "" {
			why = "a path without a map"
		}
		if why == "" {
			if member {
				kept = append(kept, d)
			}
			continue
		}
		if err := s.remove(d.name, why); err != nil {
			errs = append(errs, err)
		}
	}
	if mapped && flush {
		states := s.checked(ctx)
		if !slices.ContainsFunc(kept, func(d disk) bool { return usable(d, states) }) {
			s.log.Info("flushing a map without a path that works", "map", own.name, "serial", e.serial)
			if err := s.flush(ctx, own, 1); err != nil {
				s.log.Warn("a map without a path that works stays", "map", own.name, "err", err)
			} else {
				for _, d := range kept {
					if err := s.remove(d.name, "its map had no path that works"); err != nil {
						errs = append(errs, err)
					}
				}
			}
		}
	}
	return errors.Join(errs...)
}

// misleads says why a disk must go, or "". now is who it is.
func (e export) misleads(d disk, now string, member bool) string {
	switch {
	case now == "":
		// Gone, or without an identity: not to be used, and harmless unless it is a
		// path of the volume's map.
		if member {
			return "a path of the volume without an identity"
		}
	case now == e.serial && !e.accepts(d.target, d.lun):
		return fmt.Sprintf("the volume is no longer at LUN %d", d.lun)
	case now == e.serial && d.wwn != e.serial:
		// Its LUN was given to the volume. The kernel, and whoever uses the device,
		// take it for the one of before.
		return fmt.Sprintf("it was %s and is %s now", d.wwn, now)
	case now != e.serial && member:
		return fmt.Sprintf("a path of the volume, but it is %s", now)
	case now != d.wwn && d.wwn == e.serial:
		return fmt.Sprintf("it was the volume and is %s now", now)
	}
	if m := d.holder; m.multipath() && now != "" && m.uuid != mapUUID(now) {
		return fmt.Sprintf("it is %s, and a path of %s (%s)", now, m.name, strings.TrimPrefix(m.uuid, mapPrefix))
	}
	return ""
}

// find looks for the volume's map. It trusts what the kernel has of the paths.
// Errors: node.ErrNoDevice, which says how far it is.
func (s *SAN) find(ctx context.Context, e export) (string, error) {
	b, err := s.look(e.serial, e.luns(), false)
	if err != nil {
		return "", err
	}
	not := func(format string, args ...any) (string, error) {
		return "", fmt.Errorf("%w: volume %s: %s", node.ErrNoDevice, e.serial, fmt.Sprintf(format, args...))
	}
	m := b.own
	if !b.mapped {
		var paths, others []string
		for _, d := range b.disks {
			switch {
			case d.wwn == e.serial:
				paths = append(paths, d.name)
			case e.hasLUN(d.lun):
				others = append(others, fmt.Sprintf("%s is %q", d.name, d.wwn))
			}
		}
		switch {
		case len(paths) > 0:
			return not("paths %s are there, but no multipath map of them", strings.Join(paths, ", "))
		case len(others) > 0:
			return not("no path has this serial number; at LUN %v, %s", e.luns(), strings.Join(others, ", "))
		}
		return not("no path has this serial number or LUN %v", e.luns())
	}
	states := s.checked(ctx)
	var dead []string
	works := false
	for _, name := range m.slaves {
		d, ok := b.disk(name)
		switch {
		case !ok:
			dead = append(dead, name+" is gone")
		case d.wwn != e.serial:
			return not("path %s of %s is %q", name, m.name, d.wwn)
		case !e.accepts(d.target, d.lun):
			return not("path %s of %s is at LUN %d, expected is %v", name, m.name, d.lun, e.luns())
		case !usable(d, states):
			dead = append(dead, fmt.Sprintf("%s is %s", name, strings.TrimSpace(d.state+" "+states[name])))
		default:
			works = true
		}
	}
	if !works {
		return not("%s has no path that works: %s", m.name, strings.Join(dead, ", "))
	}
	if len(dead) > 0 {
		s.log.Warn("the volume has paths that don't work", "map", m.name, "paths", dead)
	}
	dev := m.node()
	fi, err := s.host.Stat(dev)
	if err != nil || fi.Mode()&fs.ModeDevice == 0 || fi.Mode()&fs.ModeCharDevice != 0 {
		return not("%s isn't a block device yet", dev)
	}
	if size, err := s.host.DeviceSize(dev); err != nil || size <= 0 {
		return not("%s has no size yet (%d, %v)", dev, size, err)
	}
	return dev, nil
}

// Devices implements node.Backend: the nodes of all multipath maps.
func (s *SAN) Devices() ([]string, error) {
	all, err := s.names(sysBlock, "dm-")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, dm := range all {
		if m := (mpath{uuid: s.line(sysBlock, dm, "dm/uuid"), name: s.line(sysBlock, dm, "dm/name")}); m.multipath() {
			out = append(out, m.node())
		}
	}
	slices.Sort(out)
	return out, nil
}

// behind finds the multipath map of a device node; false when it has none.
func (s *SAN) behind(device string) (mpath, bool, error) {
	real, err := s.host.EvalSymlinks(device)
	if err != nil {
		real = device
	}
	all, err := s.names(sysBlock, "dm-")
	if err != nil {
		return mpath{}, false, err
	}
	for _, dm := range all {
		// A mount table shows the one name or the other.
		if real == "/dev/"+dm || path.Dir(real) == "/dev/mapper" && s.line(sysBlock, dm, "dm/name") == path.Base(real) {
			m, err := s.mpath(dm)
			return m, err == nil && m.multipath(), err
		}
	}
	return mpath{}, false, nil
}

// Rescan implements node.Backend: each path is asked for its size, then the map
// takes it over. A path that turns out to lead to another volume is deleted
// before.
func (s *SAN) Rescan(ctx context.Context, device string) error {
	m, ok, err := s.behind(device)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("%w: %s is not a multipath map", node.ErrNoDevice, device)
	}
	good, err := s.ask(ctx, m)
	if err != nil {
		return err
	}
	if good == 0 {
		return fmt.Errorf("%w: no path of %s answers", node.ErrNoDevice, m.name)
	}
	// The answer of multipathd is its output; older ones exit with 0 after "fail".
	out, err := s.run(ctx, "multipathd", "resize", "map", m.name)
	if err != nil {
		return err
	}
	if strings.TrimSpace(out) != "ok" {
		return fmt.Errorf("multipathd resize map %s: %q", m.name, strings.TrimSpace(out))
	}
	return nil
}

// Verify implements node.Backend.
func (s *SAN) Verify(ctx context.Context, device string) error {
	m, ok, err := s.behind(device)
	if err != nil || !ok {
		return err
	}
	return s.verify(ctx, m)
}

// verify deletes the paths of a map that lead elsewhere. Where no path is left
// that works, I/O must not wait for one: the unmount would not end.
func (s *SAN) verify(ctx context.Context, m mpath) error {
	good, err := s.ask(ctx, m)
	if err != nil {
		return err
	}
	// A path whose volume is exported no more says who it was: Linux keeps what it
	// was told last. Only the path checker knows.
	if good > 0 && s.works(ctx, m) {
		return nil
	}
	if _, err := s.run(ctx, "dmsetup", "message", m.name, "0", "fail_if_no_path"); err != nil {
		s.log.Warn("queue of a dead map", "map", m.name, "err", err)
	}
	return nil
}

// ask asks the paths of a map who they are, deletes those that are another
// volume, and counts the others that answer. It needs no turn: nothing here is
// another volume's.
func (s *SAN) ask(ctx context.Context, m mpath) (good int, err error) {
	for _, name := range m.slaves {
		now, err := s.inquire(disk{name: name, state: s.line(sysBlock, name, "device/state")})
		switch {
		case errors.Is(err, errSilent):
			// A dead path: it shows who it is, and its size, when it is back.
			s.log.Warn("path can't be asked", "map", m.name, "err", err)
		case err != nil:
			return good, err
		case m.uuid != mapUUID(now):
			if err := s.remove(name, fmt.Sprintf("a path of %s, but it is %q", m.name, now)); err != nil {
				return good, err
			}
		default:
			good++
		}
		if ctx.Err() != nil {
			return good, context.Cause(ctx)
		}
	}
	return good, nil
}
