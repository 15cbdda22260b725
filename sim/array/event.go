package array

import "time"

// MaxEvents is how many events are kept, the newest ones.
const MaxEvents = 1000

// EventType is what happened.
type EventType string

// The types of events.
const (
	Added    EventType = "added"
	Changed  EventType = "changed"
	Removed  EventType = "removed"
	Warning  EventType = "warning"  // a CPG passed its allocation warning
	Expired  EventType = "expired"  // a volume was removed as its time had come
	Finished EventType = "finished" // a task
	Failed   EventType = "failed"   // a task, or a log-in
)

// Event is an entry of the array's event log.
type Event struct {
	Seq    int64     `json:"seq"` // from 1
	Time   time.Time `json:"time"`
	Type   EventType `json:"type"`
	Object string    `json:"object"` // volume, host, vlun, cpg, set, qos, task, group, session
	Name   string    `json:"name"`
}

// log notes an event.
func (a *Array) log(now time.Time, t EventType, object, name string) {
	a.eventSeq++
	e := Event{a.eventSeq, now, t, object, name}
	if len(a.events) < MaxEvents {
		a.events = append(a.events, e)
		return
	}
	a.events[(a.eventSeq-1)%MaxEvents] = e
}

// Events returns the kept events after a sequence number, oldest first.
func (a *Array) Events(after int64) []Event {
	var out []Event
	for s := max(after, a.eventSeq-int64(len(a.events))) + 1; s <= a.eventSeq; s++ {
		out = append(out, a.events[(s-1)%MaxEvents])
	}
	return out
}
