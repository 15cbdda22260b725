package san_test

import (
	"context"
	"io/fs"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/csilab/csilab/driver/node"
	"github.com/csilab/csilab/driver/node/san"
	"github.com/csilab/csilab/sim/host"
)

// A volume that is staged while one port of the array is away has all its paths
// soon after the port is back: where the node had no session at it, where it had
// one that lost its connection, and where the driver was started since.
func TestPathsThatAStageLacked(t *testing.T) {
	for _, protocol := range []string{"iscsi", "fc"} {
		for _, c := range []struct {
			name           string
			known, started bool // the node has been at the port before; the driver starts after the stage
			chap           bool
		}{
			{name: "no session"},
			{name: "no session, CHAP", chap: true},
			{name: "lost session", known: true},
			{name: "driver starts, no session", started: true},
			{name: "driver starts, lost session", known: true, started: true},
		} {
			t.Run(protocol+"/"+c.name, func(t *testing.T) {
				if c.chap && protocol == "fc" {
					t.Skip("CHAP is for iSCSI")
				}
				bubble(t, func(t *testing.T) {
					r := newRig(t, protocol, 1)
					if c.chap {
						r.wsapi(r.array(1), "PUT", "/hosts/worker-1", `{"chapOperation":1,"chapOperationMode":1,"chapName":"worker","chapSecret":"secretsecret"}`)
						r.secrets = map[string]string{"chapUser": "worker", "chapPassword": "secretsecret"}
					}
					for _, v := range []string{vol, vol2} {
						r.create(v, 1024)
						r.export(v)
					}
					if c.known {
						r.must(r.stage(r.Service, vol2, filesystem("ext4")))
						r.must(r.unstage(r.Service, vol2))
					}
					driver := func() (*node.Service, func()) {
						cfg := r.config(r.host)
						b, err := san.New(cfg)
						r.must(err)
						s, err := node.New(node.Config{Host: r.host, Backend: b, MaxVolumes: 100, Log: cfg.Log})
						r.must(err)
						ctx, cancel := context.WithCancel(context.Background())
						var wg sync.WaitGroup
						wg.Go(func() { b.Complete(ctx, 90*time.Second) })
						return s, func() { cancel(); wg.Wait() }
					}
					s, stop := driver()
					defer func() { stop() }()
					port := r.positions(r.array(1))[0]
					r.must(r.fabric.PathDown("worker-1", "array1", port, true))
					r.must(r.stage(s, vol, filesystem("ext4")))
					r.write(stagingOf(vol)+"/data", "hello")
					few := len(r.disks())
					if c.started {
						stop()
						s, stop = driver()
					}
					time.Sleep(time.Hour)
					if n := len(r.disks()); n != few {
						t.Errorf("%d disks while the port is away, had %d", n, few)
					}
					r.must(r.fabric.PathDown("worker-1", "array1", port, false))
					time.Sleep(16 * time.Minute)
					if protocol == "fc" { // the kernel has scanned by the next command
						_, err := r.host.Exec().Command("multipathd", "show", "paths").CombinedOutput()
						r.must(err)
					}
					if n := len(r.disks()); n <= few {
						t.Errorf("%d disks after the port came back, %d before", n, few)
					}
					// The path is good for all: the others go.
					for _, p := range r.positions(r.array(1))[1:] {
						r.must(r.fabric.PathDown("worker-1", "array1", p, true))
					}
					r.write(stagingOf(vol)+"/data", "again")
					for _, p := range r.positions(r.array(1))[1:] {
						r.must(r.fabric.PathDown("worker-1", "array1", p, false))
					}
					r.must(r.unstage(s, vol))
					time.Sleep(time.Hour)
					r.unexport(vol)
					r.unexport(vol2)
					if protocol == "fc" { // the kernel has found what was not staged
						_, err := r.host.Exec().Command("rescan-scsi-bus.sh", "-r").CombinedOutput()
						r.must(err)
						return
					}
					r.clean()
				})
			})
		}
	}
}

// What has the volume's LUN on the port that is back, and is another volume, does
// not stay on the node.
func TestPathThatCameIsAnother(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, "iscsi", 1)
		for _, v := range []string{vol, vol2} {
			r.create(v, 1024)
		}
		lun := r.export(vol)
		port := r.positions(r.array(1))[0]
		r.must(r.fabric.PathDown("worker-1", "array1", port, true))
		b, err := san.New(r.config(r.host))
		r.must(err)
		s, err := node.New(node.Config{Host: r.host, Backend: b, MaxVolumes: 100})
		r.must(err)
		r.must(r.stage(s, vol, filesystem("ext4")))
		few := len(r.disks())
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { b.Complete(ctx, 90*time.Second) })
		r.unexport(vol)
		if got := r.export(vol2); got != lun {
			t.Fatalf("LUN %d, was %d", got, lun)
		}
		r.must(r.fabric.PathDown("worker-1", "array1", port, false))
		time.Sleep(time.Hour)
		if n := len(r.disks()); n > few {
			t.Errorf("%d disks, had %d: paths of another volume stay", n, few)
		}
		cancel()
		wg.Wait()
		r.must(r.unstage(s, vol))
		r.clean()
	})
}

// A volume that leaves while its missing paths are looked for leaves nothing: a
// scan for it comes before the end of the unstage, or not at all.
func TestPathsDoNotComeAfterTheUnstage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, "iscsi", 1)
		r.create(vol, 1024)
		r.export(vol)
		h := &beforeScan{Host: r.host}
		b, err := san.New(r.config(h))
		r.must(err)
		s, err := node.New(node.Config{Host: h, Backend: b, MaxVolumes: 100})
		r.must(err)
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { b.Complete(ctx, 90*time.Second) })
		port := r.positions(r.array(1))[0]
		r.must(r.fabric.PathDown("worker-1", "array1", port, true))
		r.must(r.stage(s, vol, filesystem("ext4")))
		r.must(r.fabric.PathDown("worker-1", "array1", port, false))
		var scanned atomic.Bool
		unstaged := make(chan error, 1)
		do := func() {
			scanned.Store(true)
			go func() { unstaged <- r.unstage(s, vol) }()
			time.Sleep(time.Second) // it ends, unless it waits for the scan
		}
		h.do.Store(&do)
		time.Sleep(5 * time.Minute)
		if !scanned.Load() {
			t.Fatal("the path that is missing was not looked for")
		}
		r.must(<-unstaged)
		cancel()
		wg.Wait()
		r.clean()
	})
}

// beforeScan does something once before a scan.
type beforeScan struct {
	host.Host
	do atomic.Pointer[func()]
}

func (b *beforeScan) WriteFile(p string, data []byte, perm fs.FileMode) error {
	if strings.HasSuffix(p, "/scan") {
		if do := b.do.Swap(nil); do != nil {
			(*do)()
		}
	}
	return b.Host.WriteFile(p, data, perm)
}
