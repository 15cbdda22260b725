package host_test

import (
	"fmt"
	"testing"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/host/scsi/scsitest"
)

// BenchmarkSANAttach is one more volume on a node: scan, wait for the map, remove.
func BenchmarkSANAttach(b *testing.B) {
	for _, volumes := range []int{1, 100, 250} {
		b.Run(fmt.Sprint(volumes), func(b *testing.B) {
			store := disk.NewMemory()
			defer store.Close()
			w := &sanWorld{kind: "memory", protocol: host.FC, ports: scsitest.Ports(host.FC, 4)}
			w.san = scsitest.New(store, w.ports...)
			n := w.node(b)
			for i := range volumes {
				id := fmt.Sprintf("v%d", i)
				must(b, w.san.Volume(id, 1<<20))
				must(b, w.san.Export(id, n.initiator, i))
			}
			n.scan(b, "-")
			must(b, w.san.Volume("x", 1<<20))
			for b.Loop() {
				must(b, w.san.Export("x", n.initiator, 999))
				n.scan(b, "999")
				dm := must1(n.EvalSymlinks("/dev/disk/by-id/wwn-0x" + scsitest.WWN("x")))(b)[5:]
				alias := n.text(b, "/sys/block/"+dm+"/dm/name")
				n.discard(b, alias, dm)
				w.san.Unexport(n.initiator, 999)
			}
		})
	}
}
