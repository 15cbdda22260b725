package yamlfile

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
)

// Problem is one thing that is wrong in a file.
type Problem struct {
	File         string
	Line, Column int    // from 1
	Path         string // e.g. vcenters[0].datastores[1].type; "" for the file
	Text         string // what is wrong, and what is allowed
}

func (p Problem) Error() string {
	where := fmt.Sprintf("%s:%d:%d: ", p.File, p.Line, p.Column)
	if p.Path != "" {
		where += p.Path + ": "
	}
	return where + p.Text
}

// Problems are all that is wrong in a file, by place.
type Problems []Problem

func (ps Problems) Error() string {
	s := ""
	for i, p := range ps {
		if i > 0 {
			s += "\n"
		}
		s += p.Error()
	}
	return s
}

// Sort puts problems in the order of the files, and of line and column in each.
func (ps Problems) Sort(files ...string) {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(slices.Index(files, a.File)-slices.Index(files, b.File), a.Line-b.Line, a.Column-b.Column)
	})
}

// Read reads the content of a file, as far as it may be large.
func Read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, MaxFile+1)) // a device has no end
}
