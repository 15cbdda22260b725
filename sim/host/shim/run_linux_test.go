package shim

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// A program initialises its packages in the order of their import paths, each
// when what it imports is: what this package imports decides how early it is.
func TestImportsLittle(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Skip("no go command: ", err)
	}
	for _, late := range []string{"fmt", "net", "reflect", "strconv", "strings", "golang.org/x/sys/unix"} {
		for _, dep := range strings.Fields(string(out)) {
			if dep == late {
				t.Errorf("imports %s", late)
			}
		}
	}
}

// A link to a test binary of a package that imports this one is a command; here
// nobody answers.
func TestNobodyAnswers(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		env  string
		code int
		want string
	}{
		{"", 127, "answered by a node of a lab"},
		{EnvCalls + "=@csilab-nobody", 1, "connection refused"},
	} {
		cmd := exec.Command(self)
		cmd.Args[0], cmd.Env = "/somewhere/iscsiadm", []string{c.env}
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != c.code || !strings.Contains(string(out), c.want) {
			t.Errorf("with %q: %v, %s; want exit %d and %q", c.env, err, out, c.code, c.want)
		}
	}
}
