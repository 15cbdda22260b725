package vcenter

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vmware/govmomi/cns"
	"github.com/vmware/govmomi/pbm"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
	"github.com/vmware/govmomi/vslm"
)

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard) // vcsim logs what it refuses
	// A check is some hundred calls over a socket: fewer, unless asked for.
	if f := flag.Lookup("rapid.checks"); f != nil && f.Value.String() == f.DefValue {
		_ = f.Value.Set("25")
	}
	os.Exit(m.Run())
}

// filler makes values for the fields of a request.
type filler struct {
	rng  *rand.Rand
	refs []ref // to choose from
}

// implementations of what requests about disks hold by interface.
var implementations = map[reflect.Type][]reflect.Type{
	reflect.TypeFor[types.BaseVslmCreateSpecBackingSpec](): {
		reflect.TypeFor[types.VslmCreateSpecDiskFileBackingSpec](), reflect.TypeFor[types.VslmCreateSpecBackingSpec](), reflect.TypeFor[types.VslmCreateSpecRawDiskMappingBackingSpec](),
	},
	reflect.TypeFor[types.BaseVirtualDiskSpec]():           {reflect.TypeFor[types.FileBackedVirtualDiskSpec](), reflect.TypeFor[types.DeviceBackedVirtualDiskSpec]()},
	reflect.TypeFor[types.BaseCryptoSpec]():                {reflect.TypeFor[types.CryptoSpecEncrypt](), reflect.TypeFor[types.CryptoSpecDecrypt](), reflect.TypeFor[types.CryptoSpecRegister]()},
	reflect.TypeFor[types.BaseVirtualMachineProfileSpec](): {reflect.TypeFor[types.VirtualMachineDefinedProfileSpec](), reflect.TypeFor[types.VirtualMachineEmptyProfileSpec]()},
}

func (f *filler) fill(x reflect.Value, depth int) {
	if depth > 6 {
		return
	}
	if x.Type() == reflect.TypeFor[ref]() {
		x.Set(reflect.ValueOf(f.refs[f.rng.IntN(len(f.refs))]))
		return
	}
	switch x.Kind() {
	case reflect.Interface:
		if impl := implementations[x.Type()]; len(impl) > 0 && f.rng.IntN(4) > 0 {
			o := reflect.New(impl[f.rng.IntN(len(impl))])
			f.fill(o.Elem(), depth+1)
			x.Set(o)
		}
	case reflect.Pointer:
		if f.rng.IntN(3) > 0 && x.CanSet() {
			x.Set(reflect.New(x.Type().Elem()))
			f.fill(x.Elem(), depth+1)
		}
	case reflect.Slice:
		n := f.rng.IntN(3)
		x.Set(reflect.MakeSlice(x.Type(), n, n))
		for i := range n {
			f.fill(x.Index(i), depth+1)
		}
	case reflect.Struct:
		if x.Type() == reflect.TypeFor[time.Time]() {
			return
		}
		for i := range x.NumField() {
			if x.Field(i).CanSet() {
				f.fill(x.Field(i), depth+1)
			}
		}
	case reflect.String:
		x.SetString([]string{"", "x", "[datastore-1] a/b.vmdk", "../../etc/passwd", "name", "4f1b2c3d-0000-4000-8000-000000000000"}[f.rng.IntN(6)])
	case reflect.Int32, reflect.Int64, reflect.Int, reflect.Int16, reflect.Int8:
		x.SetInt([]int64{0, -1, 1, 1 << 30}[f.rng.IntN(4)])
	case reflect.Bool:
		x.SetBool(f.rng.IntN(2) == 0)
	}
}

// TestNoRequestBreaksTheServer calls every method of every kind of object with
// requests of all sorts. A panic in a task's goroutine ends the test binary;
// one in a method may leave the object locked, which the end of the test sees.
func TestNoRequestBreaksTheServer(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir) // what a method may write by a relative path shows here
	v, err := New(context.Background(), Config{Seed: 1, Nodes: []Node{{Name: "node-1"}, {Name: "node-2"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if err := v.SnapshotVM("node-2", "s"); err != nil {
		t.Fatal(err)
	}
	s := v.sessions.open(parsePrincipal(v.cfg.User), v.cfg.User, "", "", "")
	panicked := map[string]int{}
	calls, rounds := 0, 8
	if n, err := strconv.Atoi(os.Getenv("CSILAB_HOSTILE_ROUNDS")); err == nil {
		rounds = n
	}
	for _, path := range []string{vim25.Path, cns.Path, pbm.Path, vslm.Path} {
		reg := v.registry(path)
		byType := map[string][]mo.Reference{}
		for _, o := range append(reg.AllReference(""), s.Registry.AllReference("")...) {
			if ours := v.face.DiskManager(o.Reference()); ours != nil && reg == v.vim {
				o = ours
			}
			k := o.Reference().Type
			byType[k] = append(byType[k], o)
		}
		var all []ref
		for _, os := range byType {
			sort.Slice(os, func(i, j int) bool { return os[i].Reference().Value < os[j].Reference().Value })
			all = append(all, os[0].Reference())
		}
		sort.Slice(all, func(i, j int) bool { return all[i].String() < all[j].String() })
		kinds := make([]string, 0, len(byType))
		for k := range byType {
			kinds = append(kinds, k)
		}
		sort.Strings(kinds)
		for _, kind := range kinds {
			if kind == "SessionManager" {
				continue // Login has its own tests; TerminateSession would end ours
			}
			o := byType[kind][0]
			rt := reflect.TypeOf(o)
			for i := range rt.NumMethod() {
				m := rt.Method(i)
				n := m.Type.NumIn()
				if n < 2 || m.Type.NumOut() != 1 || m.Type.Out(0) != reflect.TypeFor[soap.HasFault]() {
					continue
				}
				in := m.Type.In(n - 1)
				if in.Kind() != reflect.Pointer || in.Elem().Kind() != reflect.Struct || !in.Elem().Field(0).IsExported() || strings.HasPrefix(m.Name, "Destroy") && kind != "VirtualMachine" || strings.HasPrefix(m.Name, "WaitForUpdates") || m.Name == "CheckForUpdates" {
					continue
				}
				for round := range rounds {
					f := &filler{rng: rand.New(rand.NewPCG(uint64(round), uint64(i)))}
					switch round % 4 {
					case 0, 1:
						f.refs = []ref{{Type: "VirtualMachine", Value: "vm-nope"}, {Type: "Datastore", Value: "datastore-nope"}, {}, {Type: "Folder"}}
					default:
						f.refs = all
					}
					body := reflect.New(in.Elem())
					if round > 0 {
						f.fill(body.Elem(), 0)
					}
					this := body.Elem().FieldByName("This")
					if !this.IsValid() || this.Type() != reflect.TypeFor[ref]() {
						continue
					}
					this.Set(reflect.ValueOf(o.Reference()))
					name := in.Elem().Name()
					r := &request{path: path, reg: reg, ctx: t.Context(), method: &simulator.Method{Name: name, This: o.Reference(), Body: body.Interface()}}
					done := make(chan soap.HasFault, 1)
					go func() { done <- v.call(r, s) }()
					select {
					case res := <-done:
						calls++
						if f := res.Fault(); f != nil && strings.Contains(f.String, "general system error") {
							panicked[kind+"."+name+": "+f.String]++
						}
						if _, _, err := encode(reg.Namespace, res); err != nil {
							panicked[kind+"."+name+" encode: "+err.Error()]++
						}
					case <-time.After(10 * time.Second):
						panic(fmt.Sprintf("%s.%s hangs: %+v", kind, name, body.Elem().Interface()))
					}
				}
			}
		}
	}
	time.Sleep(200 * time.Millisecond) // tasks that may still panic
	t.Logf("%d calls", calls)
	for k, n := range panicked {
		t.Errorf("%s (%d times)", k, n)
	}
	if es, _ := os.ReadDir(dir); len(es) > 0 {
		t.Errorf("files were left: %v", es)
	}
	// Everything can still be locked and read.
	for _, o := range v.vim.AllReference("") {
		ok := make(chan struct{})
		go func() {
			c := v.internal()
			c.WithLock(o, func() {})
			close(ok)
		}()
		select {
		case <-ok:
		case <-time.After(5 * time.Second):
			t.Fatalf("%s stays locked", o.Reference())
		}
	}
}
