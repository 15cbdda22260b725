package kubeletsim

import (
	"errors"
	"io/fs"
	"syscall"
	"testing"

	"github.com/csilab/csilab/sim/host"
)

// removing answers EIO to the removal of one path, before or after it is done.
type removing struct {
	host.Host
	path string
	done bool
}

func (r removing) Remove(p string) error {
	if p != r.path {
		return r.Host.Remove(p)
	}
	if r.done {
		if err := r.Host.Remove(p); err != nil {
			return err
		}
	}
	return syscall.EIO
}

// What can't be removed keeps nothing else, and what is gone after all keeps
// nothing (pkg/util/removeall/removeall.go).
func TestRemoveTreeGoesOn(t *testing.T) {
	for _, done := range []bool{true, false} {
		mem := host.NewMemory(host.MemoryConfig{Name: "node-1"})
		defer mem.Close()
		for _, dir := range []string{"/v/data", "/v/dev"} {
			if err := mem.MkdirAll(dir, 0o750); err != nil {
				t.Fatal(err)
			}
		}
		k := &Kubelet{cfg: Config{Host: removing{mem, "/v/data", done}}}
		err := k.removeTree("/v", false)
		_, after := mem.Stat("/v")
		_, dev := mem.Stat("/v/dev")
		switch {
		case !errors.Is(dev, fs.ErrNotExist):
			t.Errorf("done %v: /v/dev stays beside what was not removed: %v", done, dev)
		case done && (err != nil || !errors.Is(after, fs.ErrNotExist)):
			t.Errorf("all was removed, /v: %v, error %v", after, err)
		case !done && (!errors.Is(err, syscall.EIO) || after != nil):
			t.Errorf("/v/data was not removed: error %v, /v: %v", err, after)
		}
	}
}
