package ledger

import "slices"

// Filter selects entries.
type Filter func(Entry) bool

// OnHop selects a hop and, where given, one of the operations.
func OnHop(h Hop, ops ...string) Filter {
	return func(e Entry) bool { return e.Hop == h && (len(ops) == 0 || slices.Contains(ops, e.Op)) }
}

// After selects what came after entry seq.
func After(seq uint64) Filter { return func(e Entry) bool { return e.Seq > seq } }

// Until selects what came up to entry seq.
func Until(seq uint64) Filter { return func(e Entry) bool { return e.Seq <= seq } }

// About selects entries whose volume, snapshot or node is id.
func About(id string) Filter {
	return func(e Entry) bool { return e.Volume == id || e.Snapshot == id || e.Node == id }
}

// By selects the calls of a component.
func By(component string) Filter { return func(e Entry) bool { return e.Component == component } }

// Ended selects entries with one of the outcomes; with none, all calls that
// have ended.
func Ended(outcomes ...Outcome) Filter {
	return func(e Entry) bool {
		if len(outcomes) == 0 {
			return e.Outcome != Pending
		}
		return slices.Contains(outcomes, e.Outcome)
	}
}

// WithFault selects the calls that a rule acted on; "" is any rule.
func WithFault(rule string) Filter {
	return func(e Entry) bool { return e.Fault != "" && (rule == "" || e.Fault == rule) }
}

// CausedBy selects the calls that were made for entry seq itself.
func CausedBy(seq uint64) Filter { return func(e Entry) bool { return seq != 0 && e.Cause == seq } }

// Roots selects the calls for which no cause is known.
func Roots() Filter { return func(e Entry) bool { return e.Cause == 0 } }

// Not selects what f does not.
func Not(f Filter) Filter { return func(e Entry) bool { return !f(e) } }

// Any selects what one of the filters does.
func Any(fs ...Filter) Filter {
	return func(e Entry) bool { return slices.ContainsFunc(fs, func(f Filter) bool { return f(e) }) }
}

// passes says whether an entry passes all filters.
func passes(e Entry, filters []Filter) bool {
	return !slices.ContainsFunc(filters, func(f Filter) bool { return !f(e) })
}

// Select returns the entries that pass all filters, in order.
func Select(es []Entry, filters ...Filter) (out []Entry) {
	for _, e := range es {
		if passes(e, filters) {
			out = append(out, e)
		}
	}
	return out
}

// Entries returns a copy of the kept entries that pass all filters, in order.
// Filters must not call back.
func (l *Ledger) Entries(filters ...Filter) []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []Entry
	l.each(func(e *Entry) bool {
		if passes(*e, filters) {
			out = append(out, *e)
		}
		return true
	})
	return out
}

// Open returns the calls that have not ended and pass all filters, in order. Its
// work grows with what is under way, not with the ledger.
func (l *Ledger) Open(filters ...Filter) (out []Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, seq := range l.open {
		if e := l.at(seq); passes(*e, filters) {
			out = append(out, *e)
		}
	}
	return out
}

// Count is how many kept entries pass all filters.
func (l *Ledger) Count(filters ...Filter) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.each(func(e *Entry) bool {
		if passes(*e, filters) {
			n++
		}
		return true
	})
	return n
}

// Descendants returns the calls that were made for entry seq, for those, and so
// on, that pass all filters, in order. A cause begins before what it causes, so
// that one pass finds them.
func (l *Ledger) Descendants(seq uint64, filters ...Filter) []Entry {
	return Select(Descendants(l.Entries(), seq), filters...)
}

// Descendants is as the method of a Ledger, over entries in order.
func Descendants(es []Entry, seq uint64) (out []Entry) {
	if seq == 0 {
		return nil
	}
	in := map[uint64]bool{seq: true}
	for _, e := range es {
		if e.Cause != 0 && in[e.Cause] {
			in[e.Seq] = true
			out = append(out, e)
		}
	}
	return out
}

// Chain returns entry seq with what it was made for, and so on, outermost
// first; nothing when there is no such entry.
func (l *Ledger) Chain(seq uint64) (out []Entry) {
	for seq != 0 {
		e, ok := l.Get(seq)
		if !ok {
			break
		}
		out = append(out, e)
		if e.Cause >= seq {
			break // no cause comes after what it causes
		}
		seq = e.Cause
	}
	slices.Reverse(out)
	return out
}
