package array

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkCommands takes a volume through its life (create, export, look it up
// as an initiator does, snapshot, unexport, delete both) on an array that has as
// many volumes as the name says, exported to 100 hosts. An op is one command.
func BenchmarkCommands(b *testing.B) {
	for _, n := range []int{100, 1_000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			a, err := New(Config{CapacityMiB: 1 << 40})
			now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			if err == nil {
				_, err = a.CreateCPG(now, CPGSpec{Name: "cpg"})
			}
			var hosts [100]string
			for i := 0; i < len(hosts) && err == nil; i++ {
				hosts[i] = fmt.Sprint("h", i)
				_, err = a.CreateHost(now, HostSpec{Name: hosts[i], ISCSINames: []string{"iqn.a:" + hosts[i]}})
			}
			for i := 0; i < n && err == nil; i++ {
				v := fmt.Sprint("v", i)
				if _, err = a.CreateVolume(now, VolumeSpec{Name: v, CPG: "cpg", SnapCPG: "cpg", SizeMiB: 1024}); err == nil {
					_, err = a.CreateVLUN(now, VLUNSpec{Volume: v, Host: hosts[i%len(hosts)], Auto: true})
				}
			}
			if err != nil {
				b.Fatal(err)
			}
			names := make([]string, 1000) // made before: it's the core that is measured
			for i := range names {
				names[i] = fmt.Sprint("pvc-", i)
			}
			pos := PortPos{0, 2, 1}
			b.ReportAllocs()
			begin, commands := time.Now(), 0
			var x VLUN
			for i := 0; commands < b.N; i++ {
				v, host := names[i%len(names)], hosts[i%len(hosts)]
				steps := [...]func() error{
					func() error {
						_, err := a.CreateVolume(now, VolumeSpec{Name: v, CPG: "cpg", SnapCPG: "cpg", SizeMiB: 1024})
						return err
					},
					func() (err error) {
						x, err = a.CreateVLUN(now, VLUNSpec{Volume: v, Host: host, Auto: true})
						return err
					},
					func() error {
						if _, ok := a.Device(Path{ISCSI, "iqn.a:" + host}, pos, x.LUN); !ok {
							return fmt.Errorf("%s is not at LUN %d of %s", v, x.LUN, host)
						}
						return nil
					},
					func() error { _, err := a.CreateCopy(now, CopySpec{Of: v, Name: "s-" + v, ReadOnly: true}); return err },
					func() error { _, err := a.DeleteVolume(now, "s-"+v); return err },
					func() error { _, err := a.DeleteVLUN(now, VLUNKey{Volume: v, LUN: x.LUN, Host: host}); return err },
					func() error { _, err := a.DeleteVolume(now, v); return err },
				}
				for _, step := range steps {
					if err := step(); err != nil {
						b.Fatal(err)
					}
					commands++
				}
			}
			b.ReportMetric(float64(commands)/time.Since(begin).Seconds(), "commands/s")
		})
	}
}

// BenchmarkDevice is what each I/O of a node asks, with as many volumes exported
// to its host as the name says.
func BenchmarkDevice(b *testing.B) {
	for _, n := range []int{1, 250} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			a, err := New(Config{})
			now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			if err == nil {
				_, err = a.CreateCPG(now, CPGSpec{Name: "cpg"})
			}
			if err == nil {
				_, err = a.CreateHost(now, HostSpec{Name: "h", ISCSINames: []string{"iqn.a:b"}})
			}
			for i := 0; i < n && err == nil; i++ {
				v := fmt.Sprint("v", i)
				if _, err = a.CreateVolume(now, VolumeSpec{Name: v, CPG: "cpg", SizeMiB: 1024}); err == nil {
					_, err = a.CreateVLUN(now, VLUNSpec{Volume: v, Host: "h", Auto: true})
				}
			}
			if err != nil {
				b.Fatal(err)
			}
			path, pos := Path{ISCSI, "iqn.a:b"}, PortPos{1, 2, 2}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, ok := a.Device(path, pos, i%n); !ok {
					b.Fatal("no device")
				}
			}
		})
	}
}
