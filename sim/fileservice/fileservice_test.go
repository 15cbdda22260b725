package fileservice_test

import (
	"testing"

	"github.com/csilab/csilab/sim/fileservice"
)

func TestAllows(t *testing.T) {
	for _, c := range []struct {
		rule, address string
		want          bool
	}{
		{"*", "10.0.0.11/24", true}, {"*", "", false},
		{"10.0.0.11", "10.0.0.11/24", true}, {"10.0.0.11", "10.0.0.111", false}, {"10.0.0.11", "10.0.0.1", false},
		{"10.0.0.0/24", "10.0.0.11", true}, {"10.0.0.0/24", "10.0.1.11", false}, {"fd00::/8", "fd00::1/64", true},
		{"10.0.*.1?", "10.0.7.11", true}, {"10.0.*.1?", "10.0.7.1", false}, {"10.*", "10.0.0.1", false}, {"10.0.*.*", "10.0.0.1", true},
		{"node-1", "10.0.0.11", false}, {"[", "10.0.0.11", false}, {"", "10.0.0.11", false},
	} {
		if got := fileservice.Allows([]string{"192.0.2.1", c.rule}, []string{"192.0.2.9/24", c.address}); got != c.want && c.rule != "*" {
			t.Errorf("%s lets %s in: %v, expected %v", c.rule, c.address, got, c.want)
		}
		if got := fileservice.Allows([]string{c.rule}, []string{c.address}); got != c.want {
			t.Errorf("%s lets %s in: %v, expected %v", c.rule, c.address, got, c.want)
		}
	}
}
