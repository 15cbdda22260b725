package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/csp"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/san"
	"github.com/csilab/csilab/sim/vcenter"
)

// servedWorld is what kinds of faults act on beside a running serve: its vCenters
// and arrays, and the storage provider. Nodes and drivers are the user's.
type servedWorld struct {
	r *serving

	mu   sync.Mutex
	down map[string]*time.Timer // that start components again, by name
}

// restartTime is how long a component that crashes is away.
const restartTime = time.Second

func (w *servedWorld) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.down {
		t.Stop()
	}
}

// Lacks says what a kind needs that is not served.
func (w *servedWorld) Lacks(kind string) string {
	switch kind {
	case "vm-moved", "vm-deleted", "datastore-maintenance", "certificate-changed", "account-locked", "volume-unregistered":
		if len(w.r.vcenters) == 0 {
			return "serves no vCenter"
		}
	case "vlun-removed", "lun-renumbered", "host-entry-removed", "storage-cut":
		if w.r.san == nil {
			return "serves no arrays"
		}
	case "snapshot-removed":
		if w.r.san == nil {
			return "serves no arrays; a vCenter's snapshots are deleted by its API"
		}
	case "power-loss":
		if w.r.nodes != nil {
			return "has real nodes (--hosts), which keep running"
		}
	}
	return ""
}

func (w *servedWorld) arrays() []*san.Array {
	if w.r.san == nil {
		return nil
	}
	return w.r.san.Arrays()
}

// KillSessions ends all sessions and tokens.
func (w *servedWorld) KillSessions() {
	for _, v := range w.r.vcenters {
		v.KillSessions()
	}
	for _, a := range w.arrays() {
		a.EndSessions()
	}
	if w.r.csp != nil {
		w.r.csp.ForgetTokens()
	}
}

// ChangePassword gives the users that the environment names another password;
// heal gives them the old one.
func (w *servedWorld) ChangePassword(_ context.Context, password string) (heal func(), err error) {
	var undo []func()
	heal = func() {
		for _, f := range undo {
			f()
		}
		w.KillSessions()
	}
	for _, v := range w.r.vcenters {
		old, _ := v.URL().User.Password()
		undo = append(undo, func() { v.SetPassword(old) })
		v.SetPassword(password)
	}
	for i, a := range w.arrays() {
		u := w.r.storage.Users[i]
		undo = append(undo, func() { _ = a.SetPassword(u.Name, u.Password) }) // it was taken before
		if err := a.SetPassword(u.Name, password); err != nil {
			heal()
			return nil, err
		}
	}
	w.KillSessions()
	return heal, nil
}

// ChangeCertificate gives the vCenters new certificates; there is no way back.
func (w *servedWorld) ChangeCertificate(context.Context) (heal func(), err error) {
	for _, v := range w.r.vcenters {
		err = errors.Join(err, v.ReplaceCertificate())
	}
	return nil, err
}

// ResolveVolume finds a volume by its id, or its name.
func (w *servedWorld) ResolveVolume(subject string) (id string, ok bool) {
	if subject == "" {
		return "", false
	}
	for _, v := range w.r.vcenters {
		for _, x := range v.Volumes() {
			if x.ID == subject || x.Name == subject {
				return x.ID, true
			}
		}
	}
	if _, x, err := w.onArray(subject); err == nil {
		return x.Name, true
	}
	return "", false
}

// onArray finds a virtual volume by its name, or the id that the provider gave.
func (w *servedWorld) onArray(subject string) (*san.Array, array.Volume, error) {
	for _, a := range w.arrays() {
		for _, v := range append(a.Volumes(), a.Snapshots()...) {
			if id, _ := csp.IDOf(v.Name, v.Comment); v.Name == subject || id == subject {
				return a, v, nil
			}
		}
	}
	return nil, array.Volume{}, fmt.Errorf("no array has volume %s", subject)
}

// onVCenter is the place of the vCenter that has a volume, or -1.
func (w *servedWorld) onVCenter(id string) int {
	return slices.IndexFunc(w.r.vcenters, func(v *vcenter.VCenter) bool {
		for _, x := range v.Volumes() {
			if x.ID == id {
				return true
			}
		}
		return false
	})
}

// LoseVolume deletes a volume with what hangs on it.
func (w *servedWorld) LoseVolume(_ context.Context, id string) error {
	if i := w.onVCenter(id); i >= 0 {
		v := w.r.vcenters[i]
		for _, node := range w.r.vms {
			if slices.ContainsFunc(v.Disks()[v.VMUUID(node)], func(d vcenter.AttachedDisk) bool { return d.VolumeID == id }) {
				if err := v.PullDisk(node, id); err != nil {
					return err
				}
			}
		}
		return v.LoseDisk(id)
	}
	a, v, err := w.onArray(id)
	if err != nil {
		return err
	}
	return a.DeleteWithCopies(v.Name)
}

// ResolveSnapshot finds a snapshot of an array.
func (w *servedWorld) ResolveSnapshot(subject string) (id string, ok bool) {
	_, v, err := w.onArray(subject)
	return v.Name, err == nil && v.CopyOf != ""
}

// LoseSnapshot deletes a snapshot of an array.
func (w *servedWorld) LoseSnapshot(_ context.Context, id string) error {
	a, v, err := w.onArray(id)
	if err != nil {
		return err
	}
	return a.DeleteVolume(v.Name)
}

// ResolveNode finds a VM by its name, or a host of an array.
func (w *servedWorld) ResolveNode(subject string) (name string, ok bool) {
	if w.vcenterOf(subject) != nil {
		return subject, true
	}
	for _, a := range w.arrays() {
		if slices.ContainsFunc(a.Hosts(), func(h array.Host) bool { return h.Name == subject }) {
			return subject, true
		}
	}
	return "", false
}

// vcenterOf is the vCenter that has a node's VM, or nil.
func (w *servedWorld) vcenterOf(node string) *vcenter.VCenter {
	for _, v := range w.r.vcenters {
		if v.VMUUID(node) != "" {
			return v
		}
	}
	return nil
}

func (w *servedWorld) ofVM(node string, do func(*vcenter.VCenter) error) error {
	if v := w.vcenterOf(node); v != nil {
		return do(v)
	}
	return fmt.Errorf("node %q is no VM", node)
}

// PowerOff switches a VM off, or takes a host's paths to the arrays.
func (w *servedWorld) PowerOff(_ context.Context, node string) error { return w.power(node, false) }

// PowerOn undoes it.
func (w *servedWorld) PowerOn(_ context.Context, node string) error { return w.power(node, true) }

func (w *servedWorld) power(node string, on bool) error {
	if v := w.vcenterOf(node); v != nil {
		if on {
			return v.PowerOn(node)
		}
		return v.PowerOff(node)
	}
	w.r.san.NodeCut(node, !on)
	return nil
}

// MoveVM migrates a VM to another host that takes it.
func (w *servedWorld) MoveVM(node string) error {
	return w.ofVM(node, func(v *vcenter.VCenter) error {
		var errs []error
		for _, h := range v.Hosts() {
			if h == v.HostOf(node) {
				continue
			}
			err := v.MoveVM(node, h)
			if err == nil {
				return nil
			}
			errs = append(errs, err)
		}
		return errors.Join(append(errs, errors.New("no other host takes it"))...)
	})
}

// DestroyVM deletes a VM.
func (w *servedWorld) DestroyVM(_ context.Context, node string) error {
	return w.ofVM(node, func(v *vcenter.VCenter) error { return v.DeleteVM(node) })
}

// MaintainDatastore puts datastores of a name into maintenance mode, or with ""
// all.
func (w *servedWorld) MaintainDatastore(name string) (heal func(), err error) {
	var undo []func()
	heal = func() {
		for _, f := range undo {
			f()
		}
	}
	var names []string
	for _, v := range w.r.vcenters {
		for _, d := range v.DatastoreNames() {
			names = append(names, d)
			if name != "" && name != d {
				continue
			}
			if err := v.DatastoreMaintenance(d, true); err != nil {
				heal()
				return nil, err
			}
			undo = append(undo, func() { _ = v.DatastoreMaintenance(d, false) }) // it was taken before
		}
	}
	if len(undo) == 0 {
		return nil, fmt.Errorf("datastore %q: there is none; allowed are %s", name, strings.Join(names, ", "))
	}
	return heal, nil
}

// FillStorage leaves so much in each datastore and CPG. Healing lifts any limit
// that a CPG had.
func (w *servedWorld) FillStorage(freeBytes int64) (heal func(), err error) {
	var undo []func() error
	heal = func() {
		for _, f := range undo {
			_ = f() // it was taken before
		}
	}
	fill := func(do, back func() error) {
		if err == nil {
			if err = do(); err == nil {
				undo = append(undo, back)
			}
		}
	}
	for _, v := range w.r.vcenters {
		for _, d := range v.DatastoreList() {
			fill(func() error { return v.FillDatastore(d.Name, freeBytes) }, func() error { return v.FillDatastore(d.Name, d.CapacityBytes) })
		}
	}
	for _, a := range w.arrays() {
		for _, c := range a.CPGs() {
			fill(func() error { return a.FillCPG(c.Name, freeBytes>>20) }, func() error { return a.FillCPG(c.Name, -1) })
		}
	}
	if err != nil {
		heal()
		return nil, err
	}
	return heal, nil
}

// LockAccount locks the users that the environment names, at the vCenters.
func (w *servedWorld) LockAccount() (heal func(), err error) {
	var undo []func() error
	heal = func() {
		for _, f := range undo {
			_ = f() // it was taken before
		}
	}
	for _, v := range w.r.vcenters {
		user := v.URL().User.Username()
		if err := v.LockAccount(user); err != nil {
			heal()
			return nil, err
		}
		undo = append(undo, func() error { return v.UnlockAccount(user) })
	}
	return heal, nil
}

// CutStorage takes a host's paths to the arrays.
func (w *servedWorld) CutStorage(node string) (heal func(), err error) {
	w.r.san.NodeCut(node, true)
	return func() { w.r.san.NodeCut(node, false) }, nil
}

// RemoveHostEntry deletes a host of that name on each array, with its exports.
func (w *servedWorld) RemoveHostEntry(node string) error {
	found := false
	for _, a := range w.arrays() {
		if slices.ContainsFunc(a.Hosts(), func(h array.Host) bool { return h.Name == node }) {
			found = true
			if err := a.RemoveHost(node); err != nil {
				return err
			}
		}
	}
	if !found {
		return fmt.Errorf("no array has host %s", node)
	}
	return nil
}

// Unregister takes a volume off CNS's records; its user registers it again.
func (w *servedWorld) Unregister(_ context.Context, id string) (heal func(), err error) {
	i := w.onVCenter(id)
	if i < 0 {
		return nil, fmt.Errorf("no vCenter has volume %s", id)
	}
	return nil, w.r.vcenters[i].ForgetVolume(id)
}

// RemoveVLUN ends a volume's exports to a host.
func (w *servedWorld) RemoveVLUN(_ context.Context, volume, node string) error {
	a, v, err := w.onArray(volume)
	if err != nil {
		return err
	}
	return a.RemoveVLUN(v.Name, node)
}

// RenumberLUN gives it another LUN.
func (w *servedWorld) RenumberLUN(volume, node string) error {
	a, v, err := w.onArray(volume)
	if err != nil {
		return err
	}
	free := 0
	for _, x := range a.Exports() {
		free = max(free, x.LUN+1)
	}
	return a.RenumberLUN(v.Name, node, free)
}

// FlipBits changes a byte of a volume on its medium.
func (w *servedWorld) FlipBits(volume string, offset int64, mask byte) error {
	var img disk.Image
	var err error
	if i := w.onVCenter(volume); i >= 0 {
		img, err = w.r.disks[i].Open(volume) // an image has its volume's id
	} else {
		var a *san.Array
		var v array.Volume
		if a, v, err = w.onArray(volume); err == nil {
			img, err = a.Open(v.Name)
		}
	}
	if err != nil {
		return err
	}
	defer img.Close()
	return disk.Flip(img, offset, mask)
}

// Components are the names of all that can crash.
func (w *servedWorld) Components() []string {
	names := slices.Clone(w.r.names)
	for _, a := range w.arrays() {
		names = append(names, a.Name())
	}
	if w.r.csp != nil {
		names = append(names, "csp")
	}
	return names
}

// CheckComponent says what can crash when something can't.
func (w *servedWorld) CheckComponent(name string) error {
	if all := w.Components(); !slices.Contains(all, name) {
		return fmt.Errorf("component %q: allowed are %s", name, strings.Join(all, ", "))
	}
	return nil
}

// TakesPart says whether a component makes or answers a call.
func (w *servedWorld) TakesPart(component string, c fault.Call) bool {
	switch {
	case component == c.Component:
		return true
	case c.Hop == ledger.VCenter:
		return slices.Contains(w.r.names, component)
	case c.Hop == ledger.CSP:
		return component == "csp"
	}
	return !slices.Contains(w.r.names, component) && component != "csp"
}

// Crash takes a component away and brings it back after a second.
func (w *servedWorld) Crash(name string) { w.crash(name, false) }

// CrashLosingState does so, and a vCenter forgets the tasks that have not begun.
func (w *servedWorld) CrashLosingState(name string) error {
	w.crash(name, true)
	return nil
}

func (w *servedWorld) crash(name string, losing bool) {
	w.set(name, true, losing)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down == nil {
		w.down = map[string]*time.Timer{}
	}
	w.down[name] = time.AfterFunc(restartTime, func() { w.set(name, false, false) })
}

// Stop takes a component away until StartAgain. The provider, which answers by
// itself, can't be kept down.
func (w *servedWorld) Stop(name string) error {
	if name == "csp" {
		return errors.New("the storage provider can crash, but not be kept down")
	}
	w.mu.Lock()
	if t := w.down[name]; t != nil {
		t.Stop()
	}
	w.mu.Unlock()
	w.set(name, true, false)
	return nil
}

// StartAgain brings it back.
func (w *servedWorld) StartAgain(name string) error {
	w.set(name, false, false)
	return nil
}

func (w *servedWorld) set(name string, down, losing bool) {
	if i := slices.Index(w.r.names, name); i >= 0 {
		if down {
			w.r.vcenters[i].GoDown(losing)
		} else {
			w.r.vcenters[i].ComeUp()
		}
		return
	}
	if name == "csp" {
		if down {
			w.r.csp.ForgetTokens()
		}
		return
	}
	_ = w.r.san.ArrayDown(name, down) // it is there: see CheckComponent
}
