package san

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/csilab/csilab/driver/node"
)

// A volume that is staged while a port of its array is away has fewer paths than
// it could have, and is used all the same. Over Fibre Channel the kernel scans a
// port when it is back. Over iSCSI nobody does: there is no session to a portal
// that did not answer, and one that has lost its connection and got it back is
// not scanned (drivers/scsi/scsi_transport_iscsi.c leaves that to user space,
// where iscsid only puts the devices online that are there). So the driver does.
// Unverified: that iscsid scans no session that it has got back; where one does,
// the driver's scan finds nothing new.

// longestRest is how long [SAN.Complete] waits between two looks at volumes that
// lack paths, when it has found none for long: each look asks portals that may be
// down for days.
const longestRest = 15 * time.Minute

// lacking are the volumes that may have fewer paths than they could have.
type lacking struct {
	mu   sync.Mutex
	chap map[string]chap // by note; zero: found by what the note says
	news chan struct{}   // a volume has come
}

func newLacking() *lacking { return &lacking{chap: map[string]chap{}, news: make(chan struct{}, 1)} }

func (l *lacking) add(note string, c chap) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.chap[note] = c
	select {
	case l.news <- struct{}{}:
	default:
	}
}

// may adds those of which nothing is known.
func (l *lacking) may(notes []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range notes {
		if _, ok := l.chap[n]; !ok {
			l.chap[n] = chap{}
		}
	}
}

func (l *lacking) drop(note string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.chap, note)
}

func (l *lacking) all() map[string]chap {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[string]chap, len(l.chap))
	for n, c := range l.chap {
		out[n] = c
	}
	return out
}

// Complete gives volumes over iSCSI the paths that their stage could not: every
// so often, and less often where nothing comes of it, it logs in to the portals
// that are missing and scans. It begins with all that the node holds, for a
// driver that starts doesn't know how the one before has staged them. It returns
// when ctx ends. Errors are logged, and what they are about is tried again.
func (s *SAN) Complete(ctx context.Context, every time.Duration) {
	names, err := s.names(s.holdings(), "")
	if err != nil {
		s.log.Warn("notes of volumes", "err", err)
	}
	s.lacking.may(names)
	rest, next := every, time.Now().Add(every)
	for {
		var look <-chan time.Time
		if len(s.lacking.all()) > 0 {
			look = time.After(time.Until(next))
		}
		select {
		case <-look:
		case <-s.lacking.news: // what is new isn't kept waiting by what is old
			rest = every
			if soon := time.Now().Add(every); look == nil || soon.Before(next) {
				next = soon
			}
			continue
		case <-ctx.Done():
			return
		}
		all := s.lacking.all()
		for _, note := range sorted(all) {
			done, err := s.complete(ctx, note, all[note])
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				s.log.Warn("the volume has fewer paths than it could have", "note", note, "err", err)
			}
			if done {
				s.lacking.drop(note)
			}
		}
		rest = min(2*rest, longestRest)
		next = time.Now().Add(rest)
	}
}

// complete looks for the paths that a volume lacks; done: there are none.
func (s *SAN) complete(ctx context.Context, note string, c chap) (done bool, err error) {
	_, serial, _ := strings.Cut(note, "-")
	if _, err := s.host.Stat(path.Join(s.holdings(), note)); err != nil {
		return true, nil // it has left the node
	}
	h := s.holding(note)
	e := h.export(serial)
	if e.protocol != iSCSI || len(s.missing(e)) == 0 {
		return true, nil
	}
	if c == (chap{}) {
		if c, err = s.chapOf(ctx, node.Volume{Context: map[string]string{keyCHAPSecret: h.CHAP.Name, keyCHAPNamespace: h.CHAP.Namespace}}); err != nil {
			return false, err
		}
	}
	if err := s.fill(ctx, note, e, c); err != nil {
		return false, err
	}
	if t := s.missing(e); len(t) > 0 {
		return false, fmt.Errorf("no path by %s", strings.Join(t, ", "))
	}
	return true, nil
}

// fill logs in to the portals that are missing, and scans, in one turn.
func (s *SAN) fill(ctx context.Context, note string, e export, c chap) error {
	give, err := s.turn.take(ctx)
	if err != nil {
		return err
	}
	defer give()
	if err := s.login(ctx, e, c); err != nil {
		return err
	}
	return s.scanNoted(ctx, map[string]export{note: e})
}

// missing are the targets by which a volume that is on the node has no path.
func (s *SAN) missing(e export) (targets []string) {
	m, mapped, err := s.mapOf(e.serial)
	if err != nil || !mapped { // a stage that is under way says what it found
		return nil
	}
	has := map[string]bool{}
	for _, name := range m.slaves {
		if d, err := s.disk(name); err == nil {
			has[d.target] = true
		}
	}
	for _, a := range e.arrays {
		for _, t := range a.targets {
			if !has[t] && !slices.Contains(targets, t) {
				targets = append(targets, t)
			}
		}
	}
	return targets
}
