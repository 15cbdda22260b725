package fault

import (
	"errors"
	"fmt"
	"strings"

	"github.com/csilab/csilab/sim/ledger"
)

// What a change acts on where its parameters name nothing is what the call is
// about, or the calls that it is made for: a command on a node names no volume,
// the NodeStageVolume that it is run for does.

// volumes is a world that knows volumes by what calls name them.
type volumes interface {
	// ResolveVolume finds the id of a volume by its id, its names, or its claim.
	ResolveVolume(subject string) (id string, ok bool)
}

// snapshots is one that knows snapshots likewise.
type snapshots interface {
	ResolveSnapshot(subject string) (id string, ok bool)
}

// machines is one that knows nodes by name, by id, and by what runs there.
type machines interface {
	ResolveNode(subject string) (name string, ok bool)
}

// volumeOf is the id of the volume that a change acts on.
func volumeOf(in *Interceptor, w volumes, said string, c Call) (string, error) {
	return in.subject("volume", said, c, w.ResolveVolume, func(e ledger.Entry) []string { return []string{e.Volume} })
}

// snapshotOf is the id of the snapshot.
func snapshotOf(in *Interceptor, w snapshots, said string, c Call) (string, error) {
	return in.subject("snapshot", said, c, w.ResolveSnapshot, func(e ledger.Entry) []string {
		if e.Snapshot != "" && e.Volume != "" { // an id that is one within its volume
			return []string{e.Volume + "+" + e.Snapshot, e.Snapshot}
		}
		return []string{e.Snapshot}
	})
}

// nodeOf is the name of the node: that of the call, or where its caller runs.
func nodeOf(in *Interceptor, w machines, said string, c Call) (string, error) {
	return in.subject("node", said, c, w.ResolveNode, func(e ledger.Entry) []string {
		runs := ""
		if strings.Contains(e.Component, "@") {
			runs = e.Component
		}
		return []string{e.Node, runs}
	})
}

// subject finds what is meant: what is said, or else the first that is known of
// what the call names and the calls that caused it.
func (in *Interceptor) subject(what, said string, c Call, resolve func(string) (string, bool), named func(ledger.Entry) []string) (string, error) {
	if said != "" {
		if id, ok := resolve(said); ok {
			return id, nil
		}
		return "", fmt.Errorf("%s %q: there is none", what, said)
	}
	unknown := ""
	e := ledger.Entry{Node: c.Node, Volume: c.Volume, Snapshot: c.Snapshot, Component: c.Component, Cause: c.Cause}
	for more := true; more; {
		for _, name := range named(e) {
			if name == "" {
				continue
			}
			if id, ok := resolve(name); ok {
				return id, nil
			}
			unknown = name
		}
		more = false
		if in.Ledger != nil && e.Cause != 0 {
			e, more = in.Ledger.Get(e.Cause)
		}
	}
	if unknown != "" {
		return "", fmt.Errorf("%s %q, which the call names, is not there", what, unknown)
	}
	return "", errors.New("the call names no " + what + ": name one in the rule")
}
