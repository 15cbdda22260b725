package cli

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/csilab/csilab/sim/vcenter"
)

func TestParseDatastores(t *testing.T) {
	got, err := parseDatastores([]string{"a", "b:vsan", "c@h1", "d:VMFS@h1+h2"})
	want := []vcenter.Datastore{{Name: "a"}, {Name: "b", Type: "vsan"}, {Name: "c", Hosts: []string{"h1"}}, {Name: "d", Type: "VMFS", Hosts: []string{"h1", "h2"}}}
	if err != nil || cmp.Diff(want, got) != "" {
		t.Errorf("%v %s", err, cmp.Diff(want, got))
	}
	for _, bad := range []string{"", ":vsan", "a:", "a@", "@h"} {
		if _, err := parseDatastores([]string{bad}); err == nil {
			t.Errorf("%q passed", bad)
		}
	}
}
