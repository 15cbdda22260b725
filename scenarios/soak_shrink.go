package scenarios

import (
	"slices"
	"time"
)

// Shrink looks for a smaller soak that fails in the same way: it tries one
// thing less at a time and keeps what fails with the same class. run runs a
// candidate; the search ends when nothing less fails, or run says so.
func Shrink(failed SoakResult, run func(Soak) (res SoakResult, more bool)) SoakResult {
	best := failed
	for {
		smaller, more := false, true
		for _, s := range less(best.Soak) {
			if p := s.Plan; p != nil && p.Fits != nil && p.Fits(s.Options) != nil {
				continue // it would fail for that
			}
			var res SoakResult
			if res, more = run(s); !more {
				return best
			}
			if res.Class == failed.Class {
				best, smaller = res, true
				break
			}
		}
		if !smaller {
			return best
		}
	}
}

// less are the soaks that are smaller than s by one thing, the boldest first.
func less(s Soak) (out []Soak) {
	add := func(change func(*Soak)) {
		t := s
		t.Troubles = slices.Clone(s.Troubles)
		change(&t)
		out = append(out, t)
	}
	if s.Duration > 10*time.Minute {
		add(func(t *Soak) { t.Duration = (s.Duration / 2).Round(time.Minute) })
	}
	if s.Volumes > 3 {
		add(func(t *Soak) { t.Volumes = s.Volumes / 2 })
	}
	if n := len(s.Troubles); n > 3 {
		add(func(t *Soak) { t.Troubles = t.Troubles[:n/2] })
		add(func(t *Soak) { t.Troubles = t.Troubles[n/2:] })
	}
	if s.Options.Nodes > max(2, s.VCenters) {
		add(func(t *Soak) { t.Options.Nodes = max(2, s.VCenters, s.Options.Nodes/2) })
	}
	if s.Options.Arrays > 1 {
		add(func(t *Soak) { t.Options.Arrays = 1 })
	}
	if s.VCenters > 1 {
		add(func(t *Soak) { t.VCenters = 1 })
	}
	for i := range s.Troubles {
		if len(s.Troubles) > 1 {
			add(func(t *Soak) { t.Troubles = slices.Delete(t.Troubles, i, i+1) })
		}
	}
	return out
}
