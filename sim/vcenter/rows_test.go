package vcenter_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestRowsAreTested: every test that docs/vsphere-rows.md names exists.
func TestRowsAreTested(t *testing.T) {
	page, err := os.ReadFile("../../docs/vsphere-rows.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]bool{}
	decl := regexp.MustCompile(`(?m)^func (Test\w+)\(t `)
	err = filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		src, err := os.ReadFile(path)
		for _, m := range decl.FindAllStringSubmatch(string(src), -1) {
			tests[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range regexp.MustCompile(`\bTest\w+`).FindAllString(string(page), -1) {
		if !tests[name] {
			t.Errorf("docs/vsphere-rows.md names %s, which is no test", name)
		}
	}
}
