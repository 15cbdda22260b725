package envfile

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// A shell reads what was written, whatever is in it; nobody else reads the file.
func TestShellReadsIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "env")
	values := []string{"plain-1.2:3/4", "", "it's $HOME `x` \"y\" \\", "two\nlines", "ünïcode"}
	for _, v := range values {
		if err := Write(path, [][2]string{{"A", "1"}, {"V", v}}); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("sh", "-c", `. "$1"; printf %s "$A$V"`, "sh", path).Output()
		if err != nil || string(out) != "1"+v {
			t.Errorf("%q is read as %q: %v", v, out, err)
		}
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", fi.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := Write(filepath.Join(path, "x"), nil); err == nil {
		t.Error("a file below a file")
	}
}
