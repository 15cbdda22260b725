package host

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A loop device that somebody left read-only, as a killed lab does with what an
// array exported so, can be written by whoever gets its number next.
func TestLoopDeviceThatWasReadOnlyIsWritable(t *testing.T) {
	if err := RealSupported(); err != nil {
		t.Skip(err)
	}
	file := func(name string) string {
		p := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(p, make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	attach := func(name string) *loop {
		l, err := attachLoop(file(name), t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	isReadOnly := func(l *loop) bool {
		v, err := unix.IoctlGetInt(int(l.f.Fd()), unix.BLKROGET)
		if err != nil {
			t.Fatal(err)
		}
		return v != 0
	}
	first := attach("first")
	if err := first.readOnly(true); err != nil {
		t.Fatal(err)
	}
	if _, err := first.f.WriteAt(make([]byte, 512), 0); err == nil {
		t.Fatal("a read-only device took a write")
	}
	first.f.Close() // as when the process is killed

	// The free device of the lowest number is given first; others on the machine
	// may be quicker, so several are asked for.
	for range 8 {
		l := attach("next")
		defer l.close()
		if isReadOnly(l) {
			t.Fatalf("loop%d is read-only from before", l.minor)
		}
		if _, err := l.f.WriteAt(make([]byte, 512), 0); err != nil {
			t.Fatal(err)
		}
		if l.minor == first.minor {
			break
		}
	}

	last := attach("last")
	if err := last.readOnly(true); err != nil {
		t.Fatal(err)
	}
	keep, err := openLoop(int(last.minor), t.TempDir(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer keep.Close()
	if err := last.close(); err != nil {
		t.Fatal(err)
	}
	if isReadOnly(&loop{f: keep}) {
		t.Error("a device that was let go of stays read-only")
	}
}
