package cli

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/csilab/csilab/scenarios"
)

// The codes are a promise to CI pipelines: the page has each of them.
func TestExitCodesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/exit-codes.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range []int{ExitOK, ExitFailed, ExitUsage, ExitEnvironment, ExitUnknown, ExitInvariant, ExitNoConverge, ExitInterrupted} {
		if !strings.Contains(string(page), "\n| "+strconv.Itoa(code)+" | ") {
			t.Errorf("docs/exit-codes.md says nothing about %d", code)
		}
	}
}

func TestCodes(t *testing.T) {
	for class, want := range map[scenarios.Class]int{
		scenarios.Passed: 0, scenarios.Skipped: 0, scenarios.Failed: 1, scenarios.Environment: 3,
		"of some other kind": 4, scenarios.Invariant: 5, scenarios.NoConverge: 6, scenarios.Interrupted: 130,
	} {
		if got := codeOfClass(class); got != want {
			t.Errorf("class %s ends with %d, want %d", class, got, want)
		}
	}
	worst := 0
	for i, code := range []int{1, 6, 5, 3, 4, 130} { // each outweighs the ones before
		if severity(code) <= worst {
			t.Errorf("%d, number %d, does not outweigh those before", code, i)
		}
		worst = severity(code)
	}
	if got := codeOf(errors.New("from cobra")); got != ExitUsage {
		t.Errorf("an error of cobra's ends with %d", got)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { panic("broken writer") }

// A bug is 4, not a stack trace with Go's own code 2.
func TestPanicIsUnknown(t *testing.T) {
	var errs bytes.Buffer
	if got := Run(context.Background(), Streams{Out: broken{}, Err: &errs}, []string{"version"}); got != ExitUnknown || !strings.Contains(errs.String(), "bug: broken writer") {
		t.Errorf("exit %d, %q", got, errs.String())
	}
}
