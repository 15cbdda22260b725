package store

import "time"

// EventTTL is how long an Event object stays after it was last written: the API
// server's --event-ttl, 1 h (k8s v1.37.2 pkg/controlplane/apiserver/options/options.go;
// pkg/registry/core/event/storage/storage.go gives it to each create and update).
const EventTTL = time.Hour

const eventKind = "Event"

// fleeting is a version of an Event object and when it goes, unless it was written
// again.
type fleeting struct {
	key, version string
	at           time.Time
}

// expire takes away the Event objects whose time has come, as etcd does when their
// lease ends. The lock is held.
func (s *Store) expire() {
	if len(s.fleeting) == 0 {
		return
	}
	now, n := time.Now(), 0
	for _, f := range s.fleeting {
		if f.at.After(now) {
			break
		}
		n++
	}
	if n == 0 {
		return
	}
	due := s.fleeting[:n:n]
	s.fleeting = s.fleeting[n:]
	for _, f := range due {
		if o := s.objects[eventKind][f.key]; o != nil && o.GetResourceVersion() == f.version {
			s.put(Deleted, infoFor(o), shallow(o))
		}
	}
}
