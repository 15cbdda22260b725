package evidence_test

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/csilab/csilab/sim/evidence"
	"github.com/csilab/csilab/sim/invariant"
	"github.com/csilab/csilab/sim/ledger"
)

var when = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// sample has a world that is well and one in which a volume has two nodes and a
// detach came too early.
func sample() *evidence.File {
	well := &invariant.World{Quiet: true, PVs: []invariant.PV{{Name: "pvc-1", VolumeID: "v1"}}, Volumes: []invariant.Volume{{ID: "v1", Name: "pvc-1"}},
		Claims: []invariant.Claim{{Key: "default/data", PV: "pvc-1", Growing: "FileSystemResizePending"}}}
	ill := &invariant.World{
		Exports:  []invariant.Export{{VolumeID: "v1", Node: "n1", Serial: "6000c29a"}, {VolumeID: "v1", Node: "n2", Serial: "6000c29a"}},
		Detaches: []invariant.Detach{{VolumeID: "v1", Node: "n1", Seq: 2, Mounted: []string{"/a"}, Forced: 1}},
		Nodes:    []invariant.Node{{Name: "n1", Sizes: map[string]int64{"6000c29a": 1 << 20}, CantGrow: map[string]string{"xfs": "no <kernel> & so"}}},
		Reads:    []invariant.Read{{VolumeID: "v1", Where: "pod default/app", What: "/data/a", Want: `"1"`, Got: `"1"`}},
	}
	calls := []ledger.Entry{
		{Seq: 1, Start: when, Hop: ledger.Kube, Op: "delete volumeattachments", Component: "attachdetach-controller", Request: "csi-1", Outcome: ledger.OK},
		{Seq: 2, Start: when, Hop: ledger.VCenter, Op: "task:CnsDetachVolume", Component: "vcenter", Volume: "v1", Outcome: ledger.OK},
		{Seq: 4, Start: when, Hop: ledger.CSI, Op: "Probe", Component: "csi-attacher", Outcome: ledger.Pending, Cause: 3},
	}
	f := &evidence.File{
		Header:  evidence.Header{Program: "devel", Scenario: "a test", System: "vsphere", Seed: 7, Options: []byte(`{"nodes":2}`)},
		Calls:   calls,
		Dropped: 1,
		Worlds:  []evidence.World{{Seq: 1, Time: when, Why: "check", World: well}, {Seq: 4, Time: when, Why: "broken", World: ill}},
	}
	for i, w := range f.Worlds {
		f.Worlds[i].Violations = invariant.Check(w.World, invariant.Record(calls))
	}
	return f
}

func written(t testing.TB, f *evidence.File) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := evidence.Write(&b, f); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestReadBackAndJudgedAlike(t *testing.T) {
	want := sample()
	got, err := evidence.Read(bytes.NewReader(written(t, want)))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read back:\n%+v\nwant:\n%+v", got, want)
	}
	v, differs := evidence.Recheck(got)
	if len(differs) > 0 {
		t.Errorf("judged differently: %q", differs)
	}
	if !reflect.DeepEqual(v, want.Verdict) {
		t.Errorf("verdict %+v, want %+v", v, want.Verdict)
	}
	ids := ""
	for _, x := range v.Broken {
		ids += x.ID + " "
	}
	if ids != "I1 I6 " || len(v.Skipped) != 1 || !strings.Contains(strings.Join(v.Checked, " "), "I10") {
		t.Errorf("broken %s, skipped %v, checked %v", ids, v.Skipped, v.Checked)
	}
}

// Whoever changes a file changes the verdict: it is seen.
func TestAnotherVerdict(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*evidence.File)
		want   string
	}{
		"a violation less in the verdict": {func(f *evidence.File) { f.Verdict.Broken = f.Verdict.Broken[1:] }, "I1 was not broken and is"},
		"one more in the verdict": {func(f *evidence.File) {
			f.Verdict.Broken = append(f.Verdict.Broken, invariant.Violation{ID: "I4", Detail: "x"})
		}, "I4 was broken and is not: x"},
		"the cause is there":     {func(f *evidence.File) { f.Calls[0].Request = "csi-1 by force: timeout" }, "I6 was broken and is not"},
		"an export less":         {func(f *evidence.File) { f.Worlds[1].World.Exports = nil }, "I1 was broken and is not"},
		"more was checked":       {func(f *evidence.File) { f.Verdict.Checked = append(f.Verdict.Checked, "I99") }, "I99 was checked and can't be"},
		"less was checked":       {func(f *evidence.File) { f.Verdict.Checked = f.Verdict.Checked[1:] }, "I1 was not checked and is"},
		"nothing was left out":   {func(f *evidence.File) { f.Verdict.Skipped = nil }, "I9 was not skipped and is"},
		"something was left out": {func(f *evidence.File) { f.Worlds[0].World.Claims = nil }, "I9 was skipped and is not"},
	} {
		f, err := evidence.Read(bytes.NewReader(written(t, sample())))
		if err != nil {
			t.Fatal(err)
		}
		tc.change(f)
		_, differs := evidence.Recheck(f)
		if len(differs) != 1 || !strings.Contains(differs[0], tc.want) {
			t.Errorf("%s: %q, want %q", name, differs, tc.want)
		}
	}
}

func TestReadIsStrict(t *testing.T) {
	whole := string(written(t, sample()))
	lines := strings.SplitAfter(strings.TrimSuffix(whole, "\n"), "\n")
	lines[len(lines)-1] += "\n"
	without := func(i int) string { return strings.Join(append(append([]string{}, lines[:i]...), lines[i+1:]...), "") }
	for _, tc := range []struct{ name, in, want string }{
		{"nothing", "", "line 1: there is no end"},
		{"cut off in a line", whole[:len(whole)-30], "line 8: the line has no end"},
		{"cut off between lines", strings.Join(lines[:4], ""), "line 5: there is no end: the file was cut off"},
		{"no header", without(0), `line 1: record is "call": the first one must be header`},
		{"a call is missing", without(2), "line 7: 3 calls and 2 worlds are said to be there, there are 2 and 2"},
		{"a world is missing", without(5), "line 7: 3 calls and 2 worlds are said to be there, there are 3 and 1"},
		{"no verdict", without(6), "line 7: there is no verdict before the end"},
		{"two headers", lines[0] + whole, "line 2: a second header"},
		{"two files", whole + whole, "line 9: a second header"},
		{"after the end", whole + lines[1], "line 9: something comes after the end"},
		{"another format", strings.Replace(whole, `"format":1`, `"format":2`, 1), "line 1: format is 2, this version of csilab reads 1"},
		{"unknown record", strings.Replace(whole, `"record":"world"`, `"record":"wrld"`, 1), `line 5: record is "wrld", allowed are`},
		{"unknown field", strings.Replace(whole, `"Quiet"`, `"Quite"`, 1), `line 5: json: unknown field "Quite"`},
		{"a bad call", strings.Replace(whole, `"hop":"csi"`, `"hop":"csj"`, 1), `line 4: hop is "csj"`},
		{"a call twice", lines[0] + lines[1] + strings.Join(lines[1:], ""), "line 3: seq 1 is there twice"},
		{"no JSON", lines[0] + "x\n", "line 2: invalid character"},
		{"no world", lines[0] + `{"record":"world","seq":1}` + "\n", "line 2: world is missing"},
	} {
		f, err := evidence.Read(strings.NewReader(tc.in))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want %q", tc.name, err, tc.want)
		}
		if f != nil || !errors.As(err, new(*ledger.LineError)) {
			t.Errorf("%s: a file with error %T", tc.name, err)
		}
	}
}

// Whatever comes in, the reader refuses it with a line or reads something that
// can be judged and written.
func FuzzRead(f *testing.F) {
	f.Add(written(f, sample()))
	f.Add([]byte(`{"record":"header","format":1}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := evidence.Read(bytes.NewReader(b))
		if err != nil {
			if !errors.As(err, new(*ledger.LineError)) {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		_, _ = evidence.Recheck(x)
		written(t, x)
	})
}
