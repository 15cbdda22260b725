package ledger_test

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/csilab/csilab/sim/ledger"
)

func TestWrittenAndReadBack(t *testing.T) {
	l := attach()
	var b bytes.Buffer
	if err := l.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	got, err := ledger.Read(&b)
	if err != nil {
		t.Fatal(err)
	}
	want := l.Entries()
	for i := range want {
		want[i].Start = want[i].Start.Round(0) // a file has no monotonic clock
		if !got[i].Start.Equal(want[i].Start) {
			t.Errorf("start is %v, want %v", got[i].Start, want[i].Start)
		}
		got[i].Start, want[i].Start = time.Time{}, time.Time{}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read back:\n%swant:\n%s", ledger.Text(got), ledger.Text(want))
	}
}

const line = `{"seq":2,"start":"2026-01-01T00:00:00Z","duration":5,"hop":"csi","op":"Probe","component":"csi-attacher","outcome":"ok"}` + "\n"

func TestReadIsStrict(t *testing.T) {
	for _, tc := range []struct {
		name, in, want string
	}{
		{"no JSON", "seq=1\n", "line 1: invalid character"},
		{"cut off", line + line[:40], "line 2: the line has no end: the file was cut off"},
		{"without its last newline", strings.TrimSuffix(line, "\n"), "line 1: the line has no end"},
		{"empty line", line + "\n", "line 2: EOF"},
		{"two values", strings.TrimSuffix(line, "\n") + "{}\n", "line 1: has something behind"},
		{"unknown field", `{"seq":1,"hopp":"csi"}` + "\n", `line 1: json: unknown field "hopp"`},
		{"no seq", strings.Replace(line, `"seq":2,`, "", 1), "line 1: seq is 0"},
		{"twice", line + line, "line 2: seq is 2, as in line 1"},
		{"unknown hop", strings.Replace(line, `"hop":"csi"`, `"hop":"cis"`, 1), `line 1: hop is "cis", allowed are ["kube"`},
		{"unknown outcome", strings.Replace(line, `"outcome":"ok"`, `"outcome":"fine"`, 1), `line 1: outcome is "fine"`},
		{"no op", strings.Replace(line, `"op":"Probe"`, `"op":""`, 1), "line 1: op is empty"},
		{"from the future", strings.Replace(line, `"seq":2,`, `"seq":2,"cause":2,`, 1), "line 1: cause is 2, allowed are 0 to 1"},
		{"backwards", strings.Replace(line, `"duration":5`, `"duration":-5`, 1), "line 1: duration is -5"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			es, err := ledger.Read(strings.NewReader(tc.in))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if es != nil || !errors.As(err, new(*ledger.LineError)) {
				t.Errorf("%d entries with error %T", len(es), err)
			}
		})
	}
}

// A spill is not wholly in order.
func TestReadSorts(t *testing.T) {
	es, err := ledger.Read(strings.NewReader(line + strings.Replace(line, `"seq":2`, `"seq":1`, 1)))
	if err != nil || len(es) != 2 || es[0].Seq != 1 {
		t.Errorf("%v, %v", es, err)
	}
}

// What can be read is written again as it was, and read again.
func FuzzRead(f *testing.F) {
	f.Add([]byte(line))
	f.Add([]byte(line[:30]))
	f.Fuzz(func(t *testing.T, b []byte) {
		es, err := ledger.Read(bytes.NewReader(b))
		if err != nil {
			if !errors.As(err, new(*ledger.LineError)) {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		_ = ledger.Canonical(es)
		for _, e := range es {
			_ = ledger.Descendants(es, e.Seq)
		}
	})
}
