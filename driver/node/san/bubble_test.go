package san_test

import (
	"fmt"
	"testing"
	"testing/synctest"
)

// bubble runs a test in time of its own: 30 seconds of waiting for a device are
// none, and a loop that doesn't wait would never end.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// inBubble is bubble for one case of rapid, which says by a panic that a case has
// failed; it has to reach it. Since rapid can't tell such panics apart, what was
// wrong is logged too.
func inBubble(t *testing.T, f func(t *testing.T)) {
	var caught any
	synctest.Test(t, func(t *testing.T) {
		defer func() { caught = recover() }()
		f(t)
	})
	if caught == nil {
		return
	}
	if fmt.Sprintf("%T", caught) != "rapid.invalidData" {
		t.Logf("case: %v", caught)
	}
	panic(caught)
}
