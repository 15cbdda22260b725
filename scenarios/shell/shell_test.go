package shell_test

import (
	"os/exec"
	"testing"

	"github.com/csilab/csilab/scenarios/shell"
)

// A shell reads each word back as it was; plain ones are not quoted.
func TestWord(t *testing.T) {
	for in, want := range map[string]string{
		"a.yaml":       "a.yaml",
		"^many$":       "'^many$'",
		"my plan":      "'my plan'",
		"it's":         `'it'\''s'`,
		"":             "''",
		"$HOME;`x`\n*": "'$HOME;`x`\n*'",
		"~/x":          "'~/x'",
		"-":            "-",
	} {
		got := shell.Word(in)
		if got != want {
			t.Errorf("%q is written %s, want %s", in, got, want)
		}
		sh, err := exec.LookPath("sh")
		if err != nil {
			continue // no such shell here
		}
		back, err := exec.Command(sh, "-c", "printf %s "+got).Output()
		if err != nil || string(back) != in {
			t.Errorf("%s is read as %q, %v", got, back, err)
		}
	}
}
