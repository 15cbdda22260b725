package san_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host/scsi"
	"github.com/csilab/csilab/sim/san"
)

// BenchmarkStart starts two paired arrays with their REST APIs.
func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		s, err := san.New(context.Background(), san.Config{Arrays: make([]san.ArrayConfig, 2), Pairs: []san.Pair{{"array1", "array2"}}})
		if err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
}

// BenchmarkIO is what each I/O of a node costs here: the LUN is looked up, then
// 4 KiB are written.
func BenchmarkIO(b *testing.B) {
	s, err := san.New(context.Background(), san.Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	a := s.Arrays()[0]
	err = a.Change(func(now time.Time) ([]array.ContentOp, error) {
		spec := array.VolumeSpec{Name: "v", CPG: san.DefaultCPG, SizeMiB: 1024}
		plan, err := a.Core().PlanCreateVolume(spec)
		if err == nil {
			_, err = a.Core().CreateVolume(now, spec)
		}
		if err == nil {
			_, err = a.Core().CreateHost(now, array.HostSpec{Name: "n", ISCSINames: []string{iqn + "n"}})
		}
		if err == nil {
			_, err = a.Core().CreateVLUN(now, array.VLUNSpec{Volume: "v", Host: "n", LUN: 1})
		}
		return plan.Ops, err
	})
	if err != nil {
		b.Fatal(err)
	}
	n := s.For("n", scsi.Adapters{IQN: iqn + "n"})
	found, err := n.Discover(b.Context(), iqn+"n", "192.0.2.10:3260")
	if err == nil {
		err = n.Login(b.Context(), iqn+"n", found[0], scsi.CHAP{})
	}
	if err != nil {
		b.Fatal(err)
	}
	at := n.(interface {
		LUN(string, scsi.Target, int) (scsi.LUN, error)
	})
	l, err := at.LUN(iqn+"n", found[0], 1)
	if err != nil {
		b.Fatal(err)
	}
	img, err := n.Open(l.Image)
	if err != nil {
		b.Fatal(err)
	}
	defer img.Close()
	page := make([]byte, 4096)
	page[0] = 1
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := at.LUN(iqn+"n", found[0], 1); err != nil {
			b.Fatal(err)
		}
		if _, err := img.WriteAt(page, int64(i%1000)*4096); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkKept is a change that is written down, with 1,000 volumes.
func BenchmarkKept(b *testing.B) {
	s, err := san.New(context.Background(), san.Config{Store: disk.NewMemory(), StateDir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	a := s.Arrays()[0]
	err = a.Change(func(now time.Time) (ops []array.ContentOp, err error) {
		for i := 0; i < 1000 && err == nil; i++ {
			var plan array.Plan
			spec := array.VolumeSpec{Name: fmt.Sprint("v", i), CPG: san.DefaultCPG, SizeMiB: 1024}
			if plan, err = a.Core().PlanCreateVolume(spec); err == nil {
				ops = append(ops, plan.Ops...)
				_, err = a.Core().CreateVolume(now, spec)
			}
		}
		return ops, err
	})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := a.SetPassword(san.DefaultUser, san.DefaultPassword); err != nil {
			b.Fatal(err)
		}
	}
}
