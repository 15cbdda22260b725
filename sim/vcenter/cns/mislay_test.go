package cns

import (
	"errors"
	"testing"
)

// kindOf is the kind of an error of the core, or "".
func kindOf(err error) Kind {
	var e *Error
	errors.As(err, &e)
	if e == nil {
		return ""
	}
	return e.Kind
}

// TestMislay: an attached disk stays in its VM, counts as no volume any more,
// can be taken out of the VM, and comes back as it was.
func TestMislay(t *testing.T) {
	c := world()
	must[Plan](t)(c.Create(epoch, spec("a", 10, "ds-1")))
	must[Attachment](t)(c.Attach(AttachSpec{Volume: "a", VM: vm("vm-1"), DiskUUID: "u"}))
	must[Disk](t)(c.Mislay("a"))
	if _, registered, err := c.Disk("a"); registered || err != nil {
		t.Fatalf("registered %v, %v", registered, err)
	}
	if _, err := c.Volume("a"); kindOf(err) != NotRegistered {
		t.Errorf("a query says %v", err)
	}
	if _, _, err := c.Detach("a", vm("vm-1")); kindOf(err) != NotRegistered {
		t.Errorf("a detach by CNS says %v", err)
	}
	for id, want := range map[string]Kind{"a": NotRegistered, "nothing": NotFound} {
		if _, err := c.Mislay(id); kindOf(err) != want {
			t.Errorf("forget %s: %v, want %s", id, err, want)
		}
	}
	must[Attachment](t)(c.DetachDisk("a", vm("vm-1")))
	again := spec("", 0)
	again.DiskID, again.Name = "a", "name-a"
	must[Plan](t)(c.Create(epoch, again))
	must[Attachment](t)(c.Attach(AttachSpec{Volume: "a", VM: vm("vm-2"), DiskUUID: "u"}))
}
