package fault_test

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

var create = fault.Call{Hop: ledger.CSI, Op: "CreateVolume", Component: "csi-provisioner", Volume: "pvc-1",
	Request: `{"name":"pvc-1","capacity_range":{"required_bytes":"1073741824"},"parameters":{"csi.storage.k8s.io/fstype":"xfs","cpg":"SSD"},"volume_capabilities":[{"block":true,"access_mode":{"mode":1}}]}`}

func TestWhere(t *testing.T) {
	mount := fault.Call{Hop: ledger.Host, Op: "Mount", Node: "node-1", Component: "driver@node-1", Request: "/staging from /dev/sdb type xfs ro"}
	cut := fault.Call{Hop: ledger.VCenter, Op: "CnsCreateVolume", Request: `{"CreateSpecs":[{"Name":"a","Size":7},{"Name":"b","Met…`}
	for _, tc := range []struct {
		text    string
		call    fault.Call
		attempt int
		want    bool
	}{
		{`volume == "pvc-1"`, create, 1, true},
		{`volume != "pvc-1"`, create, 1, false},
		{`volume =~ "^pvc-[0-9]$" && attempt <= 2`, create, 2, true},
		{`volume =~ "^pvc-[0-9]$" && attempt <= 2`, create, 3, false},
		{`node in ["node-1", "node-2"]`, mount, 1, true},
		{`node in ["node-3"] || component == "driver@node-1"`, mount, 1, true},
		{`!(component == "driver@node-1")`, mount, 1, false},
		{`request contains "type xfs" && !(request contains "bind")`, mount, 1, true},
		{`request.name == "pvc-1"`, create, 1, true},
		{`request.capacity_range.required_bytes >= 1000000`, create, 1, true},
		{`request.capacity_range.required_bytes == 1073741824`, create, 1, true},
		{`request.parameters."csi.storage.k8s.io/fstype" == "xfs"`, create, 1, true},
		{`request.volume_capabilities[0].block`, create, 1, true},
		{`request.volume_capabilities[0].block == true`, create, 1, true},
		{`request.volume_capabilities[1].block`, create, 1, false},
		{`request.nothing == ""`, create, 1, false},
		{`request.nothing != "x"`, create, 1, true},
		{`request.name == "pvc-1"`, mount, 1, false},
		{`request.CreateSpecs[0].Size == 7`, cut, 1, true},
		{`request.CreateSpecs[1].Name == "b"`, cut, 1, true},
		{`request.CreateSpecs[2].Name == "c"`, cut, 1, false},
		{`hop == "csi" && op == "CreateVolume" || false`, create, 1, true},
		{`true || node == "x" && false`, create, 1, true},
	} {
		w, err := fault.NewWhere(tc.text)
		if err != nil {
			t.Errorf("%s: %v", tc.text, err)
			continue
		}
		if got := w.Holds(tc.call, tc.attempt); got != tc.want {
			t.Errorf("%s is %v of %s", tc.text, got, tc.call.Op)
		}
	}
}

func TestWhereErrors(t *testing.T) {
	for text, want := range map[string]string{
		``:                                "at character 1: the end, must be a name",
		`volum == "x"`:                    `at character 1: unknown name "volum"; did you mean volume?`,
		`volume = "x"`:                    `at character 8: '=' can't stand here; equal is ==`,
		`volume == 'x'`:                   `at character 11: '\'' can't stand here; texts have double quotes`,
		`volume == "x`:                    "at character 11: a text without its closing quote",
		`volume == 3`:                     "at character 11: a text and a number are never equal",
		`attempt == "1"`:                  "a number and a text are never equal",
		`volume < "x"`:                    "< is for numbers, not for a text",
		`volume`:                          "is no condition",
		`volume && true`:                  "a text is no condition",
		`volume =~ "("`:                   "error parsing regexp",
		`volume =~ node`:                  "must be a regular expression in quotes",
		`node in "node-1"`:                "must be a list",
		`node.name == "x"`:                "node has no members; request has",
		`request.`:                        "must be the name of a member",
		`request[-1] == 1`:                "counts from 0",
		`(volume == "x"`:                  `the end, must be ")"`,
		`volume == "x" and true`:          `"and" is too much; allowed are &&, ||`,
		`volume contain "x"`:              `unknown operator "contain"; did you mean contains?`,
		`volume == ["x"]`:                 "never equal",
		`node in [volume]`:                "can't stand in a list",
		`1.2.3 == 1`:                      "is no number",
		strings.Repeat("!", 100) + `true`: "nested more than 64 deep",
		strings.Repeat(" ", 5000):         "allowed are 4096",
	} {
		_, err := fault.NewWhere(text)
		if err == nil || !strings.Contains(err.Error(), want) || !errors.As(err, new(*fault.WhereError)) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// Whatever stands there, it is a condition or an error at a place in it.
func TestAnyTextIsAConditionOrAnError(t *testing.T) {
	words := []string{"volume", "attempt", "request", ".", "name", "[", "0", "]", "==", "=~", `"x"`, "(", ")", "&&", "||", "!", "in", ",", "true", "contains", "<", `"\`, "é"}
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOf(rapid.SampledFrom(words)).Draw(t, "words"), rapid.SampledFrom([]string{"", " "}).Draw(t, "between"))
		w, err := fault.NewWhere(text)
		if err == nil {
			w.Holds(create, 1)
			return
		}
		var e *fault.WhereError
		if !errors.As(err, &e) || e.Offset < 0 || e.Offset > len(text) || e.Text == "" {
			t.Fatalf("%q: %v", text, err)
		}
	})
}
