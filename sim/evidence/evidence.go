// Package evidence is the file that a lab leaves: who ran what, each call on
// each hop, how the lab looked when its invariants were judged, and the
// verdict. It is enough to judge again, without the lab.
//
// The file has a JSON object a line, each with a field "record": one header,
// then calls and worlds, then the verdict and an end that counts what came
// before, so that a file that was cut off is told from a short one.
package evidence

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"time"

	"github.com/csilab/csilab/sim/invariant"
	"github.com/csilab/csilab/sim/ledger"
)

// Format is the version of the file's format.
const Format = 1

// Header says who ran what.
type Header struct {
	Format   int             `json:"format"`
	Program  string          `json:"program"`            // version of csilab
	Scenario string          `json:"scenario,omitempty"` // or what else the lab was for
	System   string          `json:"system"`             // backend, e.g. vsphere, hpe-fc
	Seed     uint64          `json:"seed"`
	Options  json.RawMessage `json:"options,omitempty"` // of the lab, as its version knows them
}

// World is how a lab looked when it was judged, and what was found then.
type World struct {
	Seq        uint64                `json:"seq"`  // of the last call before
	Time       time.Time             `json:"time"` // of the lab
	Why        string                `json:"why"`  // broken, check, empty, converge: who asked
	World      *invariant.World      `json:"world"`
	Violations []invariant.Violation `json:"violations,omitempty"`
}

// Verdict is what came out.
type Verdict struct {
	Checked []string              `json:"checked"` // ids of the invariants
	Broken  []invariant.Violation `json:"broken,omitempty"`
	Skipped []invariant.Skipped   `json:"skipped,omitempty"`
}

// File is what a file holds.
type File struct {
	Header  Header
	Calls   []ledger.Entry
	Dropped uint64 // calls that the ledger's limit let go of
	Worlds  []World
	Verdict Verdict
}

// end counts what came before it.
type end struct {
	Calls   int    `json:"calls"`
	Dropped uint64 `json:"dropped,omitempty"`
	Worlds  int    `json:"worlds"`
}

type call struct {
	Record string `json:"record"`
	ledger.Entry
}

// Program is the version of the program that runs.
func Program() string {
	b, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range b.Settings {
		if s.Key == "vcs.revision" {
			return b.Main.Version + " " + s.Value
		}
	}
	return cmp.Or(b.Main.Version, "unknown")
}

// Write writes a file. What Verdict and Format should be is filled in.
func Write(w io.Writer, f *File) error {
	f.Header.Format = Format
	f.Verdict = verdict(f.Worlds, func(w World) []invariant.Violation { return w.Violations })
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	put := func(record string, v any) error {
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		return enc.Encode(json.RawMessage(fmt.Sprintf(`{"record":%q,%s`, record, b[1:])))
	}
	if err := put("header", f.Header); err != nil {
		return err
	}
	for _, e := range f.Calls {
		if err := enc.Encode(call{"call", e}); err != nil {
			return err
		}
	}
	for _, x := range f.Worlds {
		if err := put("world", x); err != nil {
			return err
		}
	}
	if err := put("verdict", f.Verdict); err != nil {
		return err
	}
	return put("end", end{len(f.Calls), f.Dropped, len(f.Worlds)})
}

// verdict puts together what was found in worlds.
func verdict(ws []World, found func(World) []invariant.Violation) (v Verdict) {
	v.Checked = []string{}
	for _, w := range ws {
		for _, id := range invariant.Applying(w.World) {
			if !slices.Contains(v.Checked, id) {
				v.Checked = append(v.Checked, id)
			}
		}
		for _, x := range found(w) {
			if !slices.Contains(v.Broken, x) {
				v.Broken = append(v.Broken, x)
			}
		}
		for _, x := range invariant.Skips(w.World) {
			if !slices.Contains(v.Skipped, x) {
				v.Skipped = append(v.Skipped, x)
			}
		}
	}
	slices.SortFunc(v.Checked, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
	return v
}

// Read reads a file that Write wrote. Errors name the line: *ledger.LineError.
func Read(r io.Reader) (*File, error) {
	f := &File{}
	seen := map[uint64]bool{}
	lines, stage := 0, "" // the record that came last
	err := ledger.Lines(r, func(n int, b []byte) error {
		lines = n
		var kind struct {
			Record string `json:"record"`
		}
		if err := json.Unmarshal(b, &kind); err != nil {
			return err
		}
		was := stage
		stage = kind.Record
		if (was == "") != (kind.Record == "header") {
			if was == "" {
				return fmt.Errorf("record is %q: the first one must be header", kind.Record)
			}
			return errors.New("a second header")
		}
		if was == "end" {
			return errors.New("something comes after the end")
		}
		switch kind.Record {
		case "header":
			x := struct {
				Record string `json:"record"`
				*Header
			}{Header: &f.Header}
			if err := ledger.Strict(b, &x); err != nil {
				return err
			}
			if f.Header.Format != Format {
				return fmt.Errorf("format is %d, this version of csilab reads %d", f.Header.Format, Format)
			}
			return nil
		case "call":
			var x call
			if err := ledger.Strict(b, &x); err != nil {
				return err
			}
			if seen[x.Seq] {
				return fmt.Errorf("seq %d is there twice", x.Seq)
			}
			seen[x.Seq] = true
			f.Calls = append(f.Calls, x.Entry)
			return x.Validate()
		case "world":
			var x struct {
				Record string `json:"record"`
				World
			}
			if err := ledger.Strict(b, &x); err != nil {
				return err
			}
			if x.World.World == nil {
				return errors.New("world is missing")
			}
			f.Worlds = append(f.Worlds, x.World)
			return nil
		case "verdict":
			if was == "verdict" {
				return errors.New("a second verdict")
			}
			x := struct {
				Record string `json:"record"`
				*Verdict
			}{Verdict: &f.Verdict}
			return ledger.Strict(b, &x)
		case "end":
			var x struct {
				Record string `json:"record"`
				end
			}
			if err := ledger.Strict(b, &x); err != nil {
				return err
			}
			f.Dropped = x.Dropped
			switch {
			case was != "verdict":
				return errors.New("there is no verdict before the end")
			case x.Calls != len(f.Calls) || x.Worlds != len(f.Worlds):
				return fmt.Errorf("%d calls and %d worlds are said to be there, there are %d and %d: lines are missing", x.Calls, x.Worlds, len(f.Calls), len(f.Worlds))
			}
			return nil
		}
		return fmt.Errorf("record is %q, allowed are header, call, world, verdict, end", kind.Record)
	})
	if err != nil {
		return nil, err
	}
	if stage != "end" {
		return nil, &ledger.LineError{Line: lines + 1, Err: errors.New("there is no end: the file was cut off")}
	}
	slices.SortFunc(f.Calls, func(a, b ledger.Entry) int { return cmp.Compare(a.Seq, b.Seq) })
	return f, nil
}

// Recheck judges a file anew, with the invariants of this program. It returns
// the verdict and how it differs from the one in the file, a line each.
func Recheck(f *File) (v Verdict, differs []string) {
	calls := invariant.Record(f.Calls)
	v = verdict(f.Worlds, func(w World) []invariant.Violation {
		return invariant.Check(w.World, invariant.Record(calls.Entries(ledger.Until(w.Seq))))
	})
	// The sentence is the program's, the rest is the lab's.
	same := func(a invariant.Violation) func(invariant.Violation) bool {
		return func(b invariant.Violation) bool { return a.ID == b.ID && a.Detail == b.Detail }
	}
	for _, x := range f.Verdict.Broken {
		if !slices.ContainsFunc(v.Broken, same(x)) {
			differs = append(differs, fmt.Sprintf("%s was broken and is not: %s", x.ID, x.Detail))
		}
	}
	for _, x := range v.Broken {
		if !slices.ContainsFunc(f.Verdict.Broken, same(x)) {
			differs = append(differs, fmt.Sprintf("%s was not broken and is: %s", x.ID, x.Detail))
		}
	}
	for _, id := range f.Verdict.Checked {
		if !slices.Contains(v.Checked, id) {
			differs = append(differs, id+" was checked and can't be")
		}
	}
	for _, id := range v.Checked {
		if !slices.Contains(f.Verdict.Checked, id) {
			differs = append(differs, id+" was not checked and is")
		}
	}
	for _, x := range f.Verdict.Skipped {
		if !slices.Contains(v.Skipped, x) {
			differs = append(differs, fmt.Sprintf("%s was skipped and is not: %s", x.ID, x.Reason))
		}
	}
	for _, x := range v.Skipped {
		if !slices.Contains(f.Verdict.Skipped, x) {
			differs = append(differs, fmt.Sprintf("%s was not skipped and is: %s", x.ID, x.Reason))
		}
	}
	return v, differs
}
