package san

import (
	"fmt"
	"slices"
	"time"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/disk"
)

// Name of the array.
func (a *Array) Name() string { return a.name }

// URL of its REST API, without /api/v1.
func (a *Array) URL() string { return a.server.URL() }

// Serial number of the array.
func (a *Array) Serial() string { return a.serial }

// Family of the array.
func (a *Array) Family() array.Family { return a.family }

// IsDown says whether the array was lost: see ArrayDown. It may be called in
// Look.
func (a *Array) IsDown() bool { return a.down }

// Look runs a function that reads the core.
func (a *Array) Look(read func(core *array.Array)) {
	a.san.mu.RLock()
	defer a.san.mu.RUnlock()
	read(a.core)
}

// Change runs commands on the core beside the REST API, as somebody at the
// array's console does; the content operations that do returns are done
// afterwards. The array's time has passed before. Errors: that of do, and of
// the state directory.
func (a *Array) Change(do func(now time.Time) ([]array.ContentOp, error)) error {
	return a.server.Change(do)
}

// Core of the array, for Change; it must not be used outside of that and Look.
func (a *Array) Core() *array.Array { return a.core }

func look[T any](a *Array, read func(*array.Array) T) (out T) {
	a.Look(func(c *array.Array) { out = read(c) })
	return out
}

// Volumes returns all volumes but virtual copies that are read-only, oldest
// first.
func (a *Array) Volumes() []array.Volume {
	return slices.DeleteFunc(look(a, (*array.Array).Volumes), snapshot)
}

// Snapshots returns the virtual copies that are read-only.
func (a *Array) Snapshots() []array.Volume {
	return slices.DeleteFunc(look(a, (*array.Array).Volumes), func(v array.Volume) bool { return !snapshot(v) })
}

func snapshot(v array.Volume) bool { return v.CopyType == array.Virtual && v.ReadOnly }

// Exports returns all exports, oldest first.
func (a *Array) Exports() []array.VLUN { return look(a, (*array.Array).VLUNs) }

// Hosts returns all hosts, oldest first.
func (a *Array) Hosts() []array.Host { return look(a, (*array.Array).Hosts) }

// CPGs returns all CPGs, oldest first.
func (a *Array) CPGs() []array.CPG { return look(a, (*array.Array).CPGs) }

// Groups returns all remote copy groups, oldest first.
func (a *Array) Groups() []array.Group { return look(a, (*array.Array).Groups) }

// Tasks returns the active tasks and the newest of those that ended.
func (a *Array) Tasks() []array.Task { return look(a, (*array.Array).Tasks) }

// Ports returns all ports, by place.
func (a *Array) Ports() []array.Port { return look(a, (*array.Array).Ports) }

// Sessions counts the sessions of the REST API.
func (a *Array) Sessions() int {
	return look(a, func(c *array.Array) int { return len(c.Sessions()) })
}

// EndSessions ends all sessions of the REST API, as they do when they idle out or
// the service is restarted: their keys are unknown from then on (403, code 6).
func (a *Array) EndSessions() {
	a.san.mu.Lock()
	defer a.san.mu.Unlock()
	a.endSessions()
}

func (a *Array) endSessions() {
	for _, x := range a.core.Sessions() {
		_ = a.core.CloseSession(x.Key) // it is there
	}
}

// APIDown cuts the REST API off from its clients, or connects it again; I/O goes
// on.
func (a *Array) APIDown(down bool) {
	a.san.mu.Lock()
	a.apiDown = down
	reachable := !a.apiDown && !a.down
	a.san.mu.Unlock()
	a.server.SetReachable(reachable)
}

// Open opens the content of a volume by name, to look at it or to spoil it. The
// caller closes it. Errors: NON_EXISTENT_VOL.
func (a *Array) Open(volume string) (disk.Image, error) {
	var image string
	var err error
	a.Look(func(c *array.Array) {
		var v array.Volume
		if v, err = c.Volume(volume); err == nil {
			image = v.Image
		}
	})
	if err != nil {
		return nil, err
	}
	return a.san.contents.open(image)
}

// LoggedIn is at how many ports of the array an initiator of a node is.
func (s *SAN) LoggedIn(nodeName, arrayName string) int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	n := s.nodes[nodeName]
	if n == nil {
		return 0
	}
	live := 0
	for _, x := range n.sessions {
		if x.live && x.port.a.name == arrayName {
			live++
		}
	}
	return live
}

// RemoveVLUN takes the exports of a volume to a host away, as an administrator
// does behind a driver's back; with host "" those to all. Errors: there is none.
func (a *Array) RemoveVLUN(volume, host string) error {
	return a.Change(func(now time.Time) ([]array.ContentOp, error) {
		n := 0
		for _, x := range a.core.VLUNsOf(volume) {
			if host != "" && x.Host != host {
				continue
			}
			if _, err := a.core.DeleteVLUN(now, keyOf(x)); err != nil {
				return nil, err
			}
			n++
		}
		if n == 0 {
			return nil, fmt.Errorf("san: array %q: volume %q is not exported to host %q", a.name, volume, host)
		}
		return nil, nil
	})
}

func keyOf(x array.VLUN) array.VLUNKey {
	return array.VLUNKey{Volume: x.Volume, LUN: x.LUN, Host: x.Host, Port: x.Port}
}

// RenumberLUN gives the exports of a volume to a host another LUN. Errors: there
// is none, and those of array.CreateVLUN; then the exports are as they were.
func (a *Array) RenumberLUN(volume, host string, lun int) error {
	return a.Change(func(now time.Time) ([]array.ContentOp, error) {
		old := slices.DeleteFunc(a.core.VLUNsOf(volume), func(x array.VLUN) bool { return x.Host != host })
		if len(old) == 0 {
			return nil, fmt.Errorf("san: array %q: volume %q is not exported to host %q", a.name, volume, host)
		}
		for _, x := range old {
			if _, err := a.core.DeleteVLUN(now, keyOf(x)); err != nil {
				return nil, err
			}
		}
		for i, x := range old {
			_, err := a.core.CreateVLUN(now, array.VLUNSpec{Volume: volume, Host: host, Port: x.Port, LUN: lun})
			if err == nil {
				continue
			}
			for _, y := range old[:i] {
				y.LUN = lun
				_, _ = a.core.DeleteVLUN(now, keyOf(y))
			}
			for _, y := range old {
				_, _ = a.core.CreateVLUN(now, array.VLUNSpec{Volume: volume, Host: host, Port: y.Port, LUN: y.LUN})
			}
			return nil, err
		}
		return nil, nil
	})
}

// DeleteWithCopies removes a volume by hand, its copies first: an array keeps a
// volume that has some. Errors: those of DeleteVolume.
func (a *Array) DeleteWithCopies(name string) error {
	for _, s := range append(a.Snapshots(), a.Volumes()...) {
		if s.CopyOf == name {
			if err := a.DeleteVolume(s.Name); err != nil {
				return err
			}
		}
	}
	return a.DeleteVolume(name)
}

// DeleteVolume removes a volume by hand, with its exports. Errors: those of
// array.DeleteVolume.
func (a *Array) DeleteVolume(name string) error {
	return a.Change(func(now time.Time) ([]array.ContentOp, error) {
		exports := a.core.VLUNsOf(name)
		for _, x := range exports {
			if _, err := a.core.DeleteVLUN(now, keyOf(x)); err != nil {
				return nil, err
			}
		}
		plan, err := a.core.PlanDeleteVolume(now, name)
		if err == nil {
			_, err = a.core.DeleteVolume(now, name)
		}
		if err != nil {
			for _, x := range exports {
				_, _ = a.core.CreateVLUN(now, array.VLUNSpec{Volume: x.Volume, Host: x.Host, Port: x.Port, LUN: x.LUN})
			}
			return nil, err
		}
		return plan.Ops, nil
	})
}

// RemoveHost deletes a host with its exports, as somebody does at the array's
// console. Errors: there is no such host.
func (a *Array) RemoveHost(name string) error {
	return a.Change(func(now time.Time) ([]array.ContentOp, error) {
		for _, x := range a.core.VLUNsTo(name) {
			if _, err := a.core.DeleteVLUN(now, array.VLUNKey{Volume: x.Volume, LUN: x.LUN, Host: x.Host, Port: x.Port}); err != nil {
				return nil, err
			}
		}
		return nil, a.core.DeleteHost(now, name)
	})
}

// FillCPG lets a CPG have room for so much more and no further, as if somebody
// else had filled it; negative lifts that, and with it any limit that the CPG
// had. Errors: there is no such CPG.
func (a *Array) FillCPG(name string, freeMiB int64) error {
	return a.Change(func(now time.Time) ([]array.ContentOp, error) {
		c, err := a.core.CPG(name)
		if err != nil {
			return nil, err
		}
		limit := int64(0)
		if freeMiB >= 0 {
			limit = max(1, c.UsedMiB()+freeMiB) // 0 would be no limit
		}
		none := int64(0)
		ch := array.CPGChange{GrowthLimitMiB: &limit}
		if c.WarningMiB > limit && limit > 0 {
			ch.WarningMiB = &none
		}
		_, err = a.core.ModifyCPG(now, name, ch)
		return nil, err
	})
}

// SetPassword changes the password of a user. Sessions stay. It does not outlive
// the process: users are configuration. Errors: no such user.
func (a *Array) SetPassword(user, password string) error {
	return a.Change(func(time.Time) ([]array.ContentOp, error) {
		return nil, a.core.SetPassword(user, password)
	})
}

// Open opens a content by the name of its image (array.Volume.Image): what a
// service of an array does with a volume that no host sees. What is written is
// booked as that of hosts is. The caller closes it.
func (s *SAN) Open(image string) (disk.Image, error) { return s.contents.open(image) }
