package shim

import (
	"bytes"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

func TestMessage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Message{
			Name: rapid.String().Draw(t, "name"),
			Args: rapid.SliceOf(rapid.String()).Draw(t, "args"),
			Go:   rapid.Bool().Draw(t, "go"),
			Exit: rapid.IntRange(0, 255).Draw(t, "exit"),
			Out:  rapid.String().Draw(t, "out"),
			Text: rapid.String().Draw(t, "text"),
		}
		if len(want.Args) == 0 {
			want.Args = nil
		}
		var b bytes.Buffer
		if err := want.Write(&b); err != nil {
			t.Fatal(err)
		}
		whole := bytes.Clone(b.Bytes())
		got, err := Read(&b)
		if err != nil || !reflect.DeepEqual(got, want) || b.Len() > 0 {
			t.Fatalf("read %+v, %v, and %d bytes are left; wrote %+v", got, err, b.Len(), want)
		}
		short := whole[:rapid.IntRange(0, len(whole)-1).Draw(t, "cut")]
		if m, err := Read(bytes.NewReader(short)); err == nil {
			t.Fatalf("read %+v from a part of a message", m)
		}
	})
}

func FuzzMessage(f *testing.F) {
	var b bytes.Buffer
	if err := (Message{Name: "mount", Args: []string{"-t", "xfs"}, Exit: 32, Text: "no"}).Write(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes()[4:])
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parse(b)
		if err != nil {
			return
		}
		var again bytes.Buffer
		if err := m.Write(&again); err != nil {
			t.Fatal(err)
		}
		if n, err := Read(&again); err != nil || !reflect.DeepEqual(n, m) {
			t.Fatalf("%+v was read as %+v, %v", m, n, err)
		}
	})
}
