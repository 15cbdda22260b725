package disk_test

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/csilab/csilab/sim/disk"
)

func TestDamage(t *testing.T) {
	store := disk.NewMemory()
	defer store.Close()
	for _, id := range []string{"a", "b"} {
		if err := store.Create(id, 1<<20); err != nil {
			t.Fatal(err)
		}
	}
	var d disk.Damage
	open := func(id string) disk.Image {
		img, err := store.Open(id)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { img.Close() })
		return d.Wrap(id, img)
	}
	a, b := open("a"), open("b")
	read := func(img disk.Image, off int64) (string, error) {
		p := make([]byte, 7)
		n, err := img.ReadAt(p, off)
		return string(p[:n]), err
	}
	write := func(img disk.Image, off int64) error { _, err := img.WriteAt([]byte("content"), off); return err }
	want := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	want("write", write(a, 0), nil)

	d.FailRange("a", disk.Extent{Start: 100, Length: 10}, disk.Reads)
	d.FailRange("a", disk.Extent{Start: 200, Length: 10}, disk.Writes)
	for _, off := range []int64{94, 100, 109} {
		_, err := read(a, off)
		want("read of a bad range", err, disk.ErrMedium)
		want("write where only reads fail", write(a, off), nil)
	}
	for _, off := range []int64{93, 110, 200} {
		_, err := read(a, off)
		want("read beside it", err, nil)
	}
	want("write of a bad range", write(a, 205), disk.ErrMedium)
	_, err := read(b, 100)
	want("read of another image", err, nil)

	d.Flip("a", 1, 0x20)
	if got, _ := read(a, 0); got != "cOntent" {
		t.Errorf("read %q", got)
	}
	want("write over a flip", write(a, 0), nil)
	if got, _ := read(a, 0); got != "content" {
		t.Errorf("read %q after a write", got)
	}

	d.Blank("a")
	if got, err := read(a, 0); got != string(bytes.Repeat([]byte{0}, 7)) || err != nil {
		t.Errorf("read %q, %v of a blank image", got, err)
	}
	d.Heal("a")
	if got, _ := read(a, 0); got != "content" {
		t.Errorf("read %q after Heal", got)
	}
	d.Silence("a")
	if got, err := read(a, 0); got != "" || !errors.Is(err, io.EOF) || a.Size() != 0 {
		t.Errorf("read %q, %v of a silent image of %d bytes", got, err, a.Size())
	}
	d.Heal("a")

	d.Cut(true)
	_, err = read(b, 0)
	want("read over a cut", err, disk.ErrMedium)
	want("sync over a cut", b.Sync(), disk.ErrMedium)
	d.Heal("a") // does not mend the cut
	want("write over a cut", write(b, 0), disk.ErrMedium)
	d.Cut(false)
	want("sync", b.Sync(), nil)
	if _, err := read(a, 205); err != nil || a.Size() != 1<<20 {
		t.Errorf("after all: %v", err)
	}
}
