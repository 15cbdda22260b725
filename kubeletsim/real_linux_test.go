package kubeletsim_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/csilab/csilab/kubeletsim"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/transport"
)

// The same with this machine's kernel: loop devices, ext4 and bind mounts in a
// mount namespace of the node's own.
func TestOnARealHost(t *testing.T) {
	if err := host.RealSupported(); err != nil {
		t.Skip(err)
	}
	dir := shortDir(t)
	h, err := host.NewReal(context.Background(), host.RealConfig{Name: nodeName, Dir: filepath.Join(dir, "n")})
	if err != nil {
		t.Fatal(err)
	}
	disks, err := disk.NewFiles(filepath.Join(dir, "d"))
	if err != nil {
		t.Fatal(err)
	}
	wall := transport.Wall{From: kubeletDir, To: h.SocketRoot()}
	wallFlow(t, makeRig(t, wall, kubeletsim.PluginWatcher{Wall: wall}, h, disks))
}
