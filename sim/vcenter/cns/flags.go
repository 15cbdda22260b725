package cns

import (
	"fmt"
	"slices"
	"strings"
)

// Flags are the control flags of a disk.
type Flags struct {
	// KeepAfterDeleteVM: the disk outlives a VM that is deleted while it holds
	// it. CNS sets it for its volumes.
	KeepAfterDeleteVM bool `json:"keepAfterDeleteVm,omitempty"`
	// DisableRelocation: the disk stays on its datastore.
	DisableRelocation bool `json:"disableRelocation,omitempty"`
	// ChangedBlockTracking: snapshots from now on have a change id.
	ChangedBlockTracking bool `json:"changedBlockTracking,omitempty"`
}

// FlagNames are the control flags as the API spells them
// (vim.vslm.VStorageObjectControlFlag, CnsVolumeControlFlags).
var FlagNames = []string{"keepAfterDeleteVm", "disableRelocation", "enableChangedBlockTracking"}

// set sets a flag by its name in the API, or clears it.
func (f *Flags) set(name string, on bool) {
	switch name {
	case "keepAfterDeleteVm":
		f.KeepAfterDeleteVM = on
	case "disableRelocation":
		f.DisableRelocation = on
	case "enableChangedBlockTracking":
		f.ChangedBlockTracking = on
	}
}

// PlanFlags checks whether SetFlags would succeed.
func (c *Core) PlanFlags(id string, flags []string) error {
	if _, ok := c.disk(id); !ok {
		return c.unknown(id)
	}
	for _, f := range flags {
		if !slices.Contains(FlagNames, f) {
			return &Error{Kind: InvalidArgument, Field: "controlFlags", Value: f, Reason: "allowed are " + strings.Join(FlagNames, ", ")}
		}
	}
	return nil
}

// SetFlags sets control flags of a disk, volume or not, or clears them. A flag
// that is as asked for already passes. Errors: NotFound, InvalidArgument.
func (c *Core) SetFlags(id string, flags []string, on bool) (Disk, error) {
	if err := c.PlanFlags(id, flags); err != nil {
		return Disk{}, err
	}
	v, _ := c.disk(id)
	for _, f := range flags {
		v.Flags.set(f, on)
	}
	return v.Disk.clone(), nil
}

// CBT is the state of changed block tracking, spelled as CNS does.
func (d Disk) CBT() string {
	if d.Flags.ChangedBlockTracking {
		return "ENABLED"
	}
	return "DISABLED"
}

func checkCBT(s string) error {
	switch s {
	case "", "ENABLED", "DISABLED":
		return nil
	}
	return &Error{Kind: InvalidArgument, Field: "filter.changedBlockTracking", Value: s, Reason: fmt.Sprintf("allowed are %q and %q", "ENABLED", "DISABLED")}
}
