package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/csilab/csilab/sim/evidence"
	"github.com/csilab/csilab/sim/invariant"
	"github.com/csilab/csilab/sim/ledger"
)

func newCheck(s Streams) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "check FILE...",
		Short: "Judge saved ledgers again",
		Long: `Reads ledgers that csilab has kept (- is standard input), judges the invariants
over what they hold, and says whether the verdict is the one in the file.

Exit codes: 0 the same verdict, and nothing is broken; 1 another verdict; 2 a file
that can't be read, with the line; 5 the same verdict: an invariant is broken.`,
		Example: `  csilab run --keep-all --keep ledgers
  csilab check ledgers/*.jsonl
  csilab check -o calls ledgers/vsphere.lifecycle-filesystem.ledger.jsonl`,
		RunE: func(_ *cobra.Command, args []string) error { return check(s, output, args) },
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text, json, or calls: what was called for what, without times and ids, to compare runs")
	return cmd
}

// checked is what became of one file.
type checked struct {
	File     string           `json:"file"`
	Header   evidence.Header  `json:"header"`
	Calls    int              `json:"calls"`
	Dropped  uint64           `json:"dropped,omitempty"`
	Worlds   int              `json:"worlds"`
	Verdict  evidence.Verdict `json:"verdict"`
	Same     bool             `json:"same"` // as the one in the file
	Differs  []string         `json:"differs,omitempty"`
	ExitCode int              `json:"exitCode"`
}

func check(s Streams, output string, files []string) error {
	switch {
	case output != "text" && output != "json" && output != "calls":
		return exitf(ExitUsage, "--output %q: allowed are text, json, calls", output)
	case len(files) == 0:
		return exitf(ExitUsage, "which file? csilab keeps the ledgers of scenarios that fail, see `csilab run --keep`")
	}
	worst := ExitOK
	results := []checked{}
	var errs []error
	for _, name := range files {
		f, err := readEvidence(s.In, name)
		if err != nil {
			errs = append(errs, exitf(ExitUsage, "%s: %w", name, err))
			continue
		}
		if output == "calls" {
			fmt.Fprint(s.Out, ledger.Canonical(f.Calls))
			continue
		}
		r := checked{File: name, Header: f.Header, Calls: len(f.Calls), Dropped: f.Dropped, Worlds: len(f.Worlds)}
		r.Verdict, r.Differs = evidence.Recheck(f)
		r.Same = len(r.Differs) == 0
		switch {
		case !r.Same:
			r.ExitCode = ExitFailed
		case len(r.Verdict.Broken) > 0:
			r.ExitCode = ExitInvariant
		}
		if severity(r.ExitCode) > severity(worst) {
			worst = r.ExitCode
		}
		results = append(results, r)
		if output == "text" {
			r.print(s.Out)
		}
	}
	if output == "json" {
		enc := json.NewEncoder(s.Out)
		enc.SetIndent("", "  ")
		if err := enc.Encode(map[string]any{"results": results, "exitCode": worst}); err != nil {
			return err
		}
	}
	if len(errs) > 0 { // what can't be read can't be judged: that goes first
		return &exitError{ExitUsage, errors.Join(errs...)}
	}
	if worst != ExitOK {
		return &exitError{worst, errors.New("")}
	}
	return nil
}

func readEvidence(stdin io.Reader, name string) (*evidence.File, error) {
	if name == "-" {
		return evidence.Read(stdin)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, errors.Unwrap(err) // the name is said anyway
	}
	defer f.Close()
	return evidence.Read(f)
}

func (r checked) print(w io.Writer) {
	what := r.Header.System
	if r.Header.Scenario != "" {
		what = r.Header.Scenario + " on " + what
	}
	fmt.Fprintf(w, "%s: %s, seed %d: %d calls, %d worlds\n", r.File, what, r.Header.Seed, r.Calls, r.Worlds)
	if r.Dropped > 0 {
		fmt.Fprintf(w, "  %d calls are not in the file: the ledger was limited\n", r.Dropped)
	}
	for _, v := range r.Verdict.Broken {
		fmt.Fprintf(w, "  %v\n", v)
	}
	for _, v := range r.Verdict.Skipped {
		fmt.Fprintf(w, "  %v\n", v)
	}
	for _, d := range r.Differs {
		fmt.Fprintf(w, "  differs: %s\n", d)
	}
	word := "the same verdict"
	if !r.Same {
		word = "ANOTHER verdict"
	}
	switch n := len(r.Verdict.Broken); {
	case len(r.Verdict.Checked) == 0:
		word += ": no world was judged"
	case n == 0:
		word += ": none broken of " + strings.Join(r.Verdict.Checked, " ")
	default:
		word += fmt.Sprintf(": broken is %s", strings.Join(ids(r.Verdict.Broken), " "))
	}
	fmt.Fprintf(w, "  %s\n", word)
}

// ids of invariants, each once.
func ids(vs []invariant.Violation) (out []string) {
	seen := map[string]bool{}
	for _, v := range vs {
		if !seen[v.ID] {
			seen[v.ID] = true
			out = append(out, v.ID)
		}
	}
	return out
}
