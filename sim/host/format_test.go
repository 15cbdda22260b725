package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/csilab/csilab/sim/disk"
)

// FuzzMountAnything: whatever is on a disk, mounting it ends with a filesystem
// or an error. The checksums are made right, so that the parser behind them is
// reached.
func FuzzMountAnything(f *testing.F) {
	f.Add([]byte(`{"type":"ext4","blocks":256}`), []byte(`[{"i":1,"m":2147484141,"t":0}]`))
	f.Add([]byte(`{"type":"ext4","blocks":256}`), []byte(`[{"i":1,"m":2147484141},{"i":2,"p":1,"n":"f","m":384,"s":9,"x":[[0,9,1]]}]`))
	f.Add([]byte(`{"type":"xfs","blocks":-1}`), []byte(`[]`))
	f.Add([]byte(`x`), []byte(`[{"i":1,"p":1}]`))
	f.Add([]byte(`{"type":"ext4","blocks":256}`), []byte(`[{"i":1,"m":2147484141},{"i":2,"p":1,"n":"f","m":384,"x":[[0,1,9000000000000000000]]}]`))
	f.Add([]byte(`{"type":"ext4","blocks":256}`), []byte(`[{"i":1,"m":2147484141},{"i":2,"p":1,"n":"f","m":384,"x":[[0,4611686018427387904,4611686018427387904]]}]`))
	f.Add([]byte(`{"type":"ext4","blocks":256}`), []byte(`[{"i":1,"m":384},{"i":2,"p":1,"n":"f","m":384}]`))
	f.Fuzz(func(t *testing.T, head, meta []byte) {
		s := disk.NewMemory()
		defer s.Close()
		if err := s.Create("v", 1<<20); err != nil {
			t.Fatal(err)
		}
		img, err := s.Open("v")
		if err != nil {
			t.Fatal(err)
		}
		h := NewMemory(MemoryConfig{Name: "n"})
		defer h.Close()
		if err := h.AttachDisk(context.Background(), strings.Repeat("0", 32), img); err != nil {
			t.Fatal(err)
		}
		d := h.disks[0]
		if err := writeRaw(d, head, meta); err != nil {
			return // doesn't fit
		}
		v, err := load(d)
		if err != nil {
			if !errors.Is(err, errUnclean) && !errors.Is(err, errNoFilesystem) {
				t.Fatal(err)
			}
			return
		}
		if text, _ := h.mount(mountRequest{source: "/dev/sdb", target: "/mnt", fstype: v.head.Type}); text == "" {
			_ = h.WriteFile("/mnt/new", []byte("x"), 0o600)
			_, _ = h.ReadDir("/mnt")
			h.umount("/mnt", false)
		}
		_, _ = probe(d)
	})
}

// writeRaw puts a header and metadata on a disk, with right checksums where
// the header is one.
func writeRaw(d *device, head, meta []byte) error {
	padded := append(meta[:len(meta):len(meta)], make([]byte, -len(meta)&(blockSize-1))...)
	var b []byte
	if parsed, ok := parseHeader(head); ok {
		parsed.Meta = []run{{1, int64(len(padded) / blockSize)}}
		parsed.MetaLen, parsed.MetaSum = int64(len(meta)), sum(meta)
		var err error
		if b, err = encodeHeader(parsed); err != nil {
			return err
		}
	} else {
		if len(head) > blockSize {
			return fmt.Errorf("too long")
		}
		b = append(head[:len(head):len(head)], make([]byte, blockSize-len(head))...)
	}
	if err := d.write(padded, blockSize); err != nil {
		return err
	}
	return d.write(b, 0)
}

func parseHeader(b []byte) (h header, ok bool) {
	err := json.Unmarshal(b, &h)
	return h, err == nil
}

func sum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// FuzzParseMount: arguments of mount(8) come from drivers.
func FuzzParseMount(f *testing.F) {
	f.Add("-t ext4 -o defaults,noatime /dev/sdb /mnt")
	f.Add("-o bind,remount,ro /a /b")
	f.Add("-o")
	f.Add("--make-private /a")
	f.Fuzz(func(t *testing.T, line string) {
		r, err := parseMount(strings.Fields(line))
		if err == nil && r.target == "" && r.source != "" {
			t.Errorf("source without target: %+v", r)
		}
	})
}

func TestFreeMap(t *testing.T) {
	f := freeMap{next: 1, end: 100}
	a := f.take(10)
	b := f.take(20)
	c := f.take(5)
	f.put(a)
	f.put(c)
	// 99 blocks, of which b has 20: the rest comes in pieces.
	if got := f.take(79); total(got) != 79 {
		t.Errorf("took %v", got)
	}
	if got := f.take(1); got != nil {
		t.Errorf("took %v of nothing", got)
	}
	f.put(b)
	if got := f.take(20); total(got) != 20 {
		t.Errorf("took %v", got)
	}
}
