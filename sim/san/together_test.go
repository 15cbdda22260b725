package san_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/host/scsi"
	"github.com/csilab/csilab/sim/san"
)

// TestTogether: nodes take volumes through their lives while paths, ports and
// arrays go and come back; each volume has what was written to it, each snapshot
// what it had then, and at the end nothing is left.
func TestTogether(t *testing.T) {
	s, err := san.New(context.Background(), san.Config{Arrays: make([]san.ArrayConfig, 2), Pairs: []san.Pair{{"array1", "array2"}}})
	ok(t, err)
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var nodes, faults sync.WaitGroup
	stepped := make(chan struct{}, 1) // a step of a node: time for a fault
	for i := range 4 {
		nodes.Go(func() {
			if err := lives(ctx, s, fmt.Sprintf("n%d", i), 10, stepped); err != nil {
				t.Errorf("n%d: %v", i, err)
			}
		})
	}
	faults.Go(func() {
		r := rand.New(rand.NewPCG(1, 2))
		for range stepped {
			down := r.IntN(2) == 0
			pos := array.PortPos{Node: r.IntN(2), Slot: 2, Card: 1 + r.IntN(2)}
			on := fmt.Sprintf("array%d", 1+r.IntN(2))
			switch r.IntN(5) {
			case 0:
				_ = s.PortDown(on, pos, down)
			case 1:
				_ = s.PathDown(fmt.Sprintf("n%d", r.IntN(4)), on, pos, down)
			case 2:
				s.NodeCut(fmt.Sprintf("n%d", r.IntN(4)), down)
			case 3:
				_ = s.ArrayDown("array2", down)
			case 4:
				_ = s.LinkDown("array1", "array2", down)
			}
		}
	})
	nodes.Wait()
	close(stepped)
	faults.Wait()
	for _, a := range s.Arrays() {
		if n := len(a.Volumes()) + len(a.Snapshots()) + len(a.Exports()); n > 0 {
			t.Errorf("%s: %d things are left", a.Name(), n)
		}
		for _, c := range a.CPGs() {
			if c.UsedMiB() != 0 {
				t.Errorf("%s: %+v", a.Name(), c)
			}
		}
	}
}

// lives takes some volumes of array1 through their lives on a node.
func lives(ctx context.Context, s *san.SAN, name string, count int, stepped chan<- struct{}) error {
	a, _ := s.Array("array1")
	network := s.For(name, scsi.Adapters{IQN: iqn + name})
	do := func(f func(c *array.Array, now time.Time) ([]array.ContentOp, error)) error {
		return a.Change(func(now time.Time) ([]array.ContentOp, error) { return f(a.Core(), now) })
	}
	err := do(func(c *array.Array, now time.Time) ([]array.ContentOp, error) {
		_, err := c.CreateHost(now, array.HostSpec{Name: name, ISCSINames: []string{iqn + name}})
		return nil, err
	})
	// anywhere does I/O at a LUN over whatever path there is.
	anywhere := func(lun int, io func(l scsi.LUN) error) error {
		for ctx.Err() == nil {
			for _, p := range a.Ports() {
				if p.Protocol != array.ISCSI {
					continue
				}
				found, err := network.Discover(ctx, iqn+name, p.Address+":3260")
				if err != nil {
					continue
				}
				if err := network.Login(ctx, iqn+name, found[0], scsi.CHAP{}); err != nil {
					continue
				}
				l, err := network.(interface {
					LUN(string, scsi.Target, int) (scsi.LUN, error)
				}).LUN(iqn+name, found[0], lun)
				if errors.Is(err, scsi.ErrUnreachable) {
					continue
				}
				if err != nil {
					return err
				}
				return io(l)
			}
			s.NodeCut(name, false) // nobody else may mend it any more
			for _, p := range a.Ports() {
				if p.Protocol == array.ISCSI {
					_, _ = s.PortDown("array1", p.PortPos, false), s.PathDown(name, "array1", p.PortPos, false)
				}
			}
		}
		return ctx.Err()
	}
	read := func(l scsi.LUN) (string, error) {
		img, err := network.Open(l.Image)
		if err != nil {
			return "", err
		}
		defer img.Close()
		b := make([]byte, 16)
		_, err = img.ReadAt(b, 0)
		return strings.TrimRight(string(b), "\x00"), err
	}
	for i := 0; i < count && err == nil; i++ {
		v := fmt.Sprintf("%s-v%d", name, i)
		var x, y array.VLUN
		steps := []func() error{
			func() error {
				return do(func(c *array.Array, now time.Time) ([]array.ContentOp, error) {
					plan, err := c.PlanCreateVolume(array.VolumeSpec{Name: v, CPG: san.DefaultCPG, SnapCPG: san.DefaultCPG, SizeMiB: 256})
					if err == nil {
						_, err = c.CreateVolume(now, array.VolumeSpec{Name: v, CPG: san.DefaultCPG, SnapCPG: san.DefaultCPG, SizeMiB: 256})
					}
					if err == nil {
						x, err = c.CreateVLUN(now, array.VLUNSpec{Volume: v, Host: name, Auto: true})
					}
					return plan.Ops, err
				})
			},
			func() error {
				return anywhere(x.LUN, func(l scsi.LUN) error {
					img, err := network.Open(l.Image)
					if err != nil {
						return err
					}
					defer img.Close()
					_, err = img.WriteAt([]byte(v), 0)
					return err
				})
			},
			func() error {
				return do(func(c *array.Array, now time.Time) ([]array.ContentOp, error) {
					spec := array.CopySpec{Of: v, Name: "s-" + v, ReadOnly: true}
					plan, err := c.PlanCreateCopy(spec)
					if err == nil {
						_, err = c.CreateCopy(now, spec)
					}
					if err == nil {
						y, err = c.CreateVLUN(now, array.VLUNSpec{Volume: "s-" + v, Host: name, Auto: true})
					}
					return plan.Ops, err
				})
			},
			func() error {
				return anywhere(x.LUN, func(l scsi.LUN) error {
					if got, err := read(l); err != nil || got != v {
						return fmt.Errorf("%s has %q: %w", v, got, err)
					}
					return nil
				})
			},
			func() error {
				return anywhere(y.LUN, func(l scsi.LUN) error {
					if got, err := read(l); err != nil || got != v || !l.ReadOnly {
						return fmt.Errorf("the snapshot of %s has %q: %w", v, got, err)
					}
					return nil
				})
			},
			func() error { return a.DeleteVolume("s-" + v) },
			func() error { return a.DeleteVolume(v) },
		}
		for _, step := range steps {
			if err = step(); err != nil {
				break
			}
			select {
			case stepped <- struct{}{}:
			default:
			}
		}
	}
	return err
}
