package scsi_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host/scsi"
	"github.com/csilab/csilab/sim/host/scsi/scsitest"
)

// machine drives a stack and knows what its I/O must reach: what is exported at
// a path's LUN at that moment, whatever the disk is called.
type machine struct {
	s        *scsi.Stack
	san      *scsitest.SAN
	ports    []scsi.Target
	down     map[scsi.Target]bool
	exports  map[int]string  // LUN -> volume
	reused   map[string]bool // disks whose LUN was given to another volume since they were found
	busy     map[string]bool // devices that are open
	protocol scsi.Protocol
	who      string
	// What the uevents say is there.
	objects map[scsi.Object]bool
	links   map[string]string
}

// Node, of which only what is open matters.
func (m *machine) Taken(string) bool           { return false }
func (m *machine) InUse(name string) bool      { return m.busy[name] }
func (m *machine) Flush(string) error          { return nil }
func (m *machine) Content(string) scsi.Content { return scsi.Content{} }
func (m *machine) Others() []scsi.Block        { return nil }

var volumes = map[string]int64{"v0": mib, "v1": mib, "v2": 2 * mib}

func TestIOReachesTheUnitAtTheLUN(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		store := disk.NewMemory()
		defer store.Close()
		p := rapid.SampledFrom([]scsi.Protocol{scsi.ISCSI, scsi.FC}).Draw(t, "protocol")
		m := &machine{ports: scsitest.Ports(p, 2), down: map[scsi.Target]bool{}, exports: map[int]string{}, reused: map[string]bool{}, busy: map[string]bool{},
			protocol: p, who: iqn, objects: map[scsi.Object]bool{}, links: map[string]string{}}
		m.san = scsitest.New(store, m.ports...)
		a := scsi.Adapters{IQN: iqn}
		if p == scsi.FC {
			m.who, a = wwpn, scsi.Adapters{WWPNs: []string{wwpn}}
		}
		for v, size := range volumes {
			if err := m.san.Volume(v, size); err != nil {
				t.Fatal(err)
			}
			img, err := store.Open(v)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := img.WriteAt([]byte(v), 0); err != nil {
				t.Fatal(err)
			}
			img.Close()
		}
		m.s = scsi.New(scsi.Config{SAN: m.san, Adapters: a, Node: m})
		m.s.Boot()
		defer m.s.Halt()
		m.export(t)
		if p == scsi.ISCSI {
			for _, port := range m.ports {
				if _, err := m.s.Login(context.Background(), m.s.AddRecord(port).RecordKey); err != nil {
					t.Fatal(err)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"export":   m.export,
			"unexport": m.unexport,
			"reuse": func(t *rapid.T) {
				m.unexport(t)
				m.export(t)
			},
			"scan": func(*rapid.T) {
				for n := range 6 {
					_ = m.s.Scan(n, scsi.Any, scsi.Any, scsi.Any)
				}
			},
			"rescan":      func(t *rapid.T) { m.onDisk(t, m.s.Rescan) },
			"delete":      func(t *rapid.T) { m.onDisk(t, m.s.Delete) },
			"trigger":     func(t *rapid.T) { m.onDisk(t, func(name string) error { m.s.Trigger(name); return nil }) },
			"path":        m.path,
			"login":       m.login,
			"logout":      m.logout,
			"flush":       m.flush,
			"break":       m.breakMap,
			"open":        m.open,
			"reconfigure": func(*rapid.T) { m.s.Coalesce() },
			"resize": func(t *rapid.T) {
				if ms := m.s.Maps(); len(ms) > 0 {
					_ = m.s.Resize(rapid.SampledFrom(ms).Draw(t, "map"))
				}
			},
			"power": func(t *rapid.T) {
				m.s.Halt()
				clear(m.reused)
				clear(m.busy)
				clear(m.objects)
				clear(m.links)
				m.s.Boot()
			},
			"": m.check,
		})
	})
}

func (m *machine) export(t *rapid.T) {
	v := rapid.SampledFrom(slices.Sorted(maps.Keys(volumes))).Draw(t, "volume")
	for _, has := range m.exports {
		if has == v {
			return // one LUN per volume and host
		}
	}
	lun := rapid.IntRange(0, 1).Draw(t, "LUN")
	if m.exports[lun] != "" {
		return
	}
	if err := m.san.Export(v, m.who, lun); err != nil {
		t.Fatal(err)
	}
	m.exports[lun] = v
	for _, d := range m.s.Disks() {
		if d.LUN == lun && d.WWN != scsitest.WWN(v) {
			m.reused[d.Name] = true
		}
	}
}

func (m *machine) unexport(t *rapid.T) {
	lun := rapid.IntRange(0, 1).Draw(t, "LUN")
	m.san.Unexport(m.who, lun)
	delete(m.exports, lun)
}

func (m *machine) onDisk(t *rapid.T, do func(string) error) {
	ds := m.s.Disks()
	if len(ds) == 0 {
		return
	}
	if err := do(rapid.SampledFrom(ds).Draw(t, "disk").Name); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) path(t *rapid.T) {
	p := rapid.SampledFrom(m.ports).Draw(t, "port")
	m.down[p] = !m.down[p]
	m.san.Down("", p, m.down[p])
	m.s.Refresh()
}

func (m *machine) login(t *rapid.T) {
	if m.protocol == scsi.FC {
		return
	}
	p := rapid.SampledFrom(m.ports).Draw(t, "port")
	r := m.s.AddRecord(p)
	_ = r.Set("node.startup", rapid.SampledFrom([]string{"manual", "automatic"}).Draw(t, "startup"))
	_, err := m.s.Login(context.Background(), r.RecordKey)
	if m.down[p] && err == nil {
		t.Fatal("logged in over a path that is down")
	}
}

func (m *machine) logout(t *rapid.T) {
	if xs := m.s.Sessions(); len(xs) > 0 {
		m.s.Logout(rapid.SampledFrom(xs).Draw(t, "session"))
	}
}

func (m *machine) flush(t *rapid.T) {
	if ms := m.s.Maps(); len(ms) > 0 {
		x := rapid.SampledFrom(ms).Draw(t, "map")
		if err := m.s.Flush(x); (err != nil) != m.busy[x.Name()] {
			t.Fatalf("flush of a map that is open %v: %v", m.busy[x.Name()], err)
		}
	}
}

func (m *machine) breakMap(t *rapid.T) {
	if ms := m.s.Maps(); len(ms) > 0 {
		x := rapid.SampledFrom(ms).Draw(t, "map")
		_ = m.s.Break(x)
		if _, err := read(m.s, x.Name(), 2); err == nil {
			t.Fatal("I/O through a map that was removed by force")
		}
	}
}

// open opens or closes a map.
func (m *machine) open(t *rapid.T) {
	if ms := m.s.Maps(); len(ms) > 0 {
		name := rapid.SampledFrom(ms).Draw(t, "map").Name()
		m.busy[name] = !m.busy[name]
	}
}

// live says whether a disk's path works: its port is up.
func (m *machine) live(d *scsi.Disk) bool { return m.s.Check(d) == scsi.Ready }

func (m *machine) check(t *rapid.T) {
	m.follow()
	byMap := map[*scsi.Map][]*scsi.Disk{}
	at := map[scsi.Address]bool{}
	for _, d := range m.s.Disks() {
		if at[d.Address] {
			t.Fatalf("two disks at %s", d.Address)
		}
		at[d.Address] = true
		byMap[d.Map()] = append(byMap[d.Map()], d)
		m.checkRead(t, d.Name, d.WWN, []*scsi.Disk{d})
	}
	alias := map[string]bool{}
	for _, x := range m.s.Maps() {
		if alias[x.Alias] {
			t.Fatalf("two maps are called %s", x.Alias)
		}
		alias[x.Alias] = true
		if !slices.Equal(x.Paths(), byMap[x]) {
			t.Fatalf("%s: paths %v, disks that say so %v", x.Alias, x.Paths(), byMap[x])
		}
		if len(x.Paths()) == 0 {
			if _, err := read(m.s, x.Name(), 2); !errors.Is(err, syscall.EIO) {
				t.Fatalf("read of a map without paths: %v", err)
			}
			continue
		}
		m.checkRead(t, x.Name(), x.WWID, x.Paths())
	}
	for name := range m.reused {
		if m.s.Disk(name) == nil {
			delete(m.reused, name)
		}
	}
	for p, target := range m.links {
		name := target[strings.LastIndex(target, "/")+1:]
		if m.s.Disk(name) == nil && m.s.Map(name) == nil {
			t.Fatalf("%s leads to %s, which isn't there", p, target)
		}
	}
}

// checkRead wants a read to reach what is exported at the LUN of the first path
// that works, and that to be the unit that the device is named after, unless a
// LUN was reused under it.
func (m *machine) checkRead(t *rapid.T, name, wwn string, paths []*scsi.Disk) {
	want := ""
	excused := false
	for _, d := range paths {
		if m.live(d) && want == "" {
			want = m.exports[d.LUN]
			excused = m.reused[d.Name]
		}
	}
	got, err := read(m.s, name, 2)
	if want == "" && !errors.Is(err, syscall.EIO) || want != "" && (err != nil || got != want) {
		t.Fatalf("%s: read %q, %v; want %q", name, got, err, want)
	}
	if want != "" && scsitest.WWN(want) != wwn && !excused {
		t.Fatalf("%s is %s and leads to %s, and no LUN was reused", name, wwn, want)
	}
}

// follow does what udev does with the uevents.
func (m *machine) follow() {
	for _, e := range m.s.Uevents() {
		switch {
		case e.Kind == scsi.KindLink:
			if target, ok := m.s.Link(e.Name); ok {
				m.links[e.Name] = target
			} else {
				delete(m.links, e.Name)
			}
		case e.Action == scsi.Remove:
			delete(m.objects, e.Object)
		default:
			m.objects[e.Object] = true
		}
	}
	want := map[scsi.Object]bool{}
	for _, d := range m.s.Disks() {
		want[scsi.Object{Kind: scsi.KindDisk, Name: d.Name}] = true
	}
	for _, x := range m.s.Maps() {
		want[scsi.Object{Kind: scsi.KindMap, Name: x.Name()}] = true
	}
	for _, x := range m.s.Sessions() {
		want[scsi.Object{Kind: scsi.KindSession, Name: fmt.Sprintf("session%d", x.ID)}] = true
	}
	for o := range m.objects {
		if (o.Kind == scsi.KindDisk || o.Kind == scsi.KindMap || o.Kind == scsi.KindSession) && !want[o] {
			panic(fmt.Sprintf("%v is gone without a uevent", o))
		}
		if len(m.s.Sysfs(o)) == 0 {
			panic(fmt.Sprintf("%v has no files", o))
		}
	}
	for o := range want {
		if !m.objects[o] {
			panic(fmt.Sprintf("%v came without a uevent", o))
		}
	}
}
