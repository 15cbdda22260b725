package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/csilab/csilab/sim/evidence"
	"github.com/csilab/csilab/sim/invariant"
	"github.com/csilab/csilab/sim/ledger"
)

// kept writes a lab's file with one world.
func kept(t *testing.T, dir, name string, w *invariant.World, said []invariant.Violation) string {
	t.Helper()
	file := filepath.Join(dir, name)
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = evidence.Write(f, &evidence.File{
		Header: evidence.Header{Program: "devel", Scenario: "a-flow", System: "vsphere", Seed: 7},
		Calls:  []ledger.Entry{{Seq: 1, Hop: ledger.CSI, Op: "Probe", Component: "csi-attacher", Outcome: ledger.OK}},
		Worlds: []evidence.World{{Seq: 1, Why: "check", World: w, Violations: said}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func TestCheckFiles(t *testing.T) {
	dir := t.TempDir()
	ill := &invariant.World{Formats: []invariant.Format{{Node: "n1", Serial: "s", Tool: "mkfs.ext4", HadData: true}}}
	well := kept(t, dir, "well", &invariant.World{Quiet: true}, nil)
	broken := kept(t, dir, "broken", ill, invariant.Check(ill, nil))
	other := kept(t, dir, "other", ill, nil)
	whole, err := os.ReadFile(well)
	if err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(dir, "cut")
	if err := os.WriteFile(cut, whole[:len(whole)-10], 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		args []string
		code int
		want []string
	}{
		{"nothing is broken", []string{well}, ExitOK, []string{"a-flow on vsphere, seed 7: 1 calls, 1 worlds", "the same verdict: none broken of I1 I2"}},
		{"something is broken", []string{well, broken}, ExitInvariant, []string{"I4 broken: mkfs.ext4", "the same verdict: broken is I4"}},
		{"another verdict", []string{other}, ExitFailed, []string{"differs: I4 was not broken and is", "ANOTHER verdict"}},
		{"cut off", []string{well, cut}, ExitUsage, []string{"cut: line 5: the line has no end", "none broken"}},
		{"no file", []string{filepath.Join(dir, "none")}, ExitUsage, []string{"none: "}},
		{"no argument", nil, ExitUsage, []string{"which file?"}},
		{"an output that is not", []string{"-o", "xml", well}, ExitUsage, []string{`--output "xml": allowed are text, json, calls`}},
		{"calls", []string{"-o", "calls", well}, ExitOK, []string{"csi Probe by csi-attacher: ok\n"}},
	} {
		var out bytes.Buffer
		code := Run(context.Background(), Streams{In: strings.NewReader(""), Out: &out, Err: &out}, append([]string{"check"}, tc.args...))
		if code != tc.code {
			t.Errorf("%s: exit %d, want %d", tc.name, code, tc.code)
		}
		for _, w := range tc.want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("%s: lacks %q:\n%s", tc.name, w, out.String())
			}
		}
	}
	var out bytes.Buffer
	code := Run(context.Background(), Streams{In: bytes.NewReader(whole), Out: &out, Err: &out}, []string{"check", "-o", "json", "-"})
	var got struct{ Results []checked }
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || code != ExitOK || len(got.Results) != 1 || !got.Results[0].Same {
		t.Errorf("json: exit %d, %v:\n%s", code, err, out.String())
	}
}
