package scsi

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// ErrQueued is no answer: the I/O waits, for a path of its map or for the map to
// be resumed. Whoever asked asks again.
var ErrQueued = errors.New("host: I/O waits for a path")

// NoPathRetry is no_path_retry of multipath.conf: for how many turns of the path
// checker the I/O of a map that has no path waits for one, before it fails.
type NoPathRetry int

// Besides numbers from 1 up.
const (
	// RetryPassed is RetryRecommended, of which the time has passed by the next
	// look: I/O without a path fails at once.
	RetryPassed NoPathRetry = 0
	// RetryForever is "queue".
	RetryForever NoPathRetry = -1
	// RetryNever is "fail".
	RetryNever NoPathRetry = -2
	// RetryRecommended is what HPE's guides for 3PAR and Primera on Linux say.
	RetryRecommended NoPathRetry = 18
)

// PollingInterval is the time from one turn of the path checker to the next
// (polling_interval of multipath.conf, its default).
const PollingInterval = 5 * time.Second

// String is the value in multipath.conf.
func (r NoPathRetry) String() string {
	switch {
	case r == RetryForever:
		return "queue"
	case r == RetryPassed:
		return fmt.Sprint(int(RetryRecommended))
	case r < 0:
		return "fail"
	}
	return fmt.Sprint(int(r))
}

// Set reads a value of multipath.conf: fail, queue, or a number from 1 up, which
// all are waited for (there is no word for RetryPassed). With Type it makes a
// NoPathRetry the value of a flag.
func (r *NoPathRetry) Set(s string) error {
	n, err := strconv.Atoi(s)
	switch {
	case s == "queue":
		*r = RetryForever
	case s == "fail":
		*r = RetryNever
	case err == nil && n >= 1 && n <= maxRetry:
		*r = NoPathRetry(n)
	default:
		return fmt.Errorf("no_path_retry is %q, allowed are fail, queue and 1 to %d", s, maxRetry)
	}
	return nil
}

// Type is what a flag's help calls the value.
func (NoPathRetry) Type() string { return "fail|queue|N" }

// maxRetry is a day of turns.
const maxRetry = int(24 * time.Hour / PollingInterval)

// Turn is a turn of multipathd's path checker. There needs to be one only while
// I/O waits: it counts the turns that found no path, and switches the queue of
// a map that has one on again.
func (s *Stack) Turn() {
	for _, m := range s.Maps() {
		switch {
		case s.reaches(m):
			m.recovered()
		case s.cfg.NoPathRetry > 0:
			m.turns++
		}
	}
}

// recovered notes that a path works again. multipathd switches the queue on
// again that it had switched off itself (leave_recovery_mode).
func (m *Map) recovered() {
	if m.turns > 0 {
		m.turns, m.noQueue = 0, m.disabled
	}
}

// reaches says whether a map has a path that answers, be it from a port on
// standby: multipathd counts both.
func (s *Stack) reaches(m *Map) bool {
	for _, d := range m.Paths() {
		if s.Check(d) != Faulty && d.inMap == m {
			return true
		}
	}
	return false
}

// holds says whether I/O to a map without a path waits for one.
func (s *Stack) holds(m *Map) bool {
	r := s.cfg.NoPathRetry
	if m.noQueue || r == RetryPassed || r == RetryNever {
		return false
	}
	return r == RetryForever || m.turns < int(r)
}

// Waits says whether I/O to a device would wait.
func (s *Stack) Waits(name string) bool {
	m := s.Map(name)
	return m != nil && !m.broken && (m.suspended || s.holds(m) && !slices.ContainsFunc(m.Paths(), func(d *Disk) bool { return s.Check(d) == Ready }))
}

// queueing says whether a map has the feature queue_if_no_path now.
func (s *Stack) queueing(m *Map) bool {
	if s.cfg.NoPathRetry == RetryPassed {
		return !m.noQueue && s.reaches(m)
	}
	return s.holds(m)
}

// queueCell is what multipathd shows of a map's queue (%Q).
func (s *Stack) queueCell(m *Map) string {
	r := s.cfg.NoPathRetry
	switch {
	case !s.queueing(m):
		return "off"
	case r == RetryForever:
		return "on"
	case m.turns > 0:
		return fmt.Sprintf("%d sec", (int(r)-m.turns)*int(PollingInterval/time.Second))
	}
	return r.String() + " chk"
}
