// Package nearest finds what a misspelled name may have meant.
package nearest

import (
	"slices"
	"strings"
)

// Name says which of the allowed names one that is none may have meant:
// "; did you mean x?", or "; allowed are …" where none is near.
func Name(name string, allowed []string) string {
	best, score := "", len(name)/2+1
	for _, a := range allowed {
		d := distance(strings.ToLower(name), strings.ToLower(a))
		if strings.EqualFold(name, a) {
			d = 0
		}
		if d < score || d == score && best != "" && a < best {
			best, score = a, d
		}
	}
	switch {
	case best != "":
		return "; did you mean " + best + "?"
	case len(allowed) == 0:
		return ""
	}
	const most = 12
	all := slices.Sorted(slices.Values(allowed))
	if len(all) > most {
		return "; allowed are " + strings.Join(all[:most], ", ") + ", …"
	}
	return "; allowed are " + strings.Join(all, ", ")
}

// distance is how many characters must be put in, taken out or replaced, or
// swapped with the next, to get from a to b.
func distance(a, b string) int {
	if len(a) > 100 || len(b) > 100 {
		return 100
	}
	before := make([]int, len(b)+1)
	last := make([]int, len(b)+1)
	this := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		this[0] = i
		for j := 1; j <= len(b); j++ {
			d := last[j-1]
			if a[i-1] != b[j-1] {
				d++
			}
			d = min(d, last[j]+1, this[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, before[j-2]+1)
			}
			this[j] = d
		}
		before, last, this = last, this, before
	}
	return last[len(b)]
}
