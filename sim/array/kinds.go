package array

import (
	"maps"
	"slices"
)

// Kinds lists the refusals that an array knows.
func Kinds() []Kind { return slices.Sorted(maps.Keys(wire)) }
