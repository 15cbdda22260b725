package san_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/mount-utils"
	"k8s.io/utils/exec"
	"pgregory.net/rapid"

	"github.com/csilab/csilab/sim/host"
)

// steps is a host whose changing operations are counted, and of which one can
// be the last: it happens (after) or not, and from then on everything fails, as
// for a process that was killed there.
type steps struct {
	host.Host
	log   []string
	last  int // 1-based; 0: none
	after bool
	dead  bool
}

var errKilled = errors.New("killed")

func (s *steps) do(op string, f func() error) error {
	if s.dead {
		return errKilled
	}
	s.log = append(s.log, op)
	at := len(s.log) == s.last
	s.dead = at
	if at && !s.after {
		return errKilled
	}
	if err := f(); err != nil || !at {
		return err
	}
	return errKilled
}

func (s *steps) WriteFile(p string, data []byte, perm fs.FileMode) error {
	return s.do("WriteFile "+p, func() error { return s.Host.WriteFile(p, data, perm) })
}

func (s *steps) MkdirAll(p string, perm fs.FileMode) error {
	return s.do("MkdirAll "+p, func() error { return s.Host.MkdirAll(p, perm) })
}

func (s *steps) Remove(p string) error {
	return s.do("Remove "+p, func() error { return s.Host.Remove(p) })
}

func (s *steps) Lchown(p string, uid, gid int) error {
	return s.do("Lchown "+p, func() error { return s.Host.Lchown(p, uid, gid) })
}

func (s *steps) Mounter() mount.Interface { return stepMounter{s.Host.Mounter(), s} }
func (s *steps) Exec() exec.Interface     { return stepExec{s.Host.Exec(), s} }

type stepMounter struct {
	mount.Interface
	s *steps
}

func (m stepMounter) Mount(source, target, fstype string, options []string) error {
	return m.s.do("mount "+target, func() error { return m.Interface.Mount(source, target, fstype, options) })
}

func (m stepMounter) Unmount(target string) error {
	return m.s.do("umount "+target, func() error { return m.Interface.Unmount(target) })
}

type stepExec struct {
	exec.Interface
	s *steps
}

func (e stepExec) Command(cmd string, args ...string) exec.Cmd {
	return e.CommandContext(context.Background(), cmd, args...)
}

func (e stepExec) CommandContext(ctx context.Context, cmd string, args ...string) exec.Cmd {
	return stepCmd{e.Interface.CommandContext(ctx, cmd, args...), strings.Join(append([]string{cmd}, args...), " "), e.s}
}

type stepCmd struct {
	exec.Cmd
	name string
	s    *steps
}

func (c stepCmd) CombinedOutput() (out []byte, err error) {
	err = c.s.do(c.name, func() (err error) { out, err = c.Cmd.CombinedOutput(); return err })
	return out, err
}

// The driver is killed after each operation that changes the node, which is
// before the next one. A new one is asked for the same, or for the reverse, and in the end
// nothing is left on the node. After the reverse the LUN is another volume's.
func TestKilledAtEachStep(t *testing.T) {
	for protocol, c := range map[string]*csi.VolumeCapability{"iscsi": filesystem("ext4"), "fc": block(writer)} {
		t.Run(protocol, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(quiet{t}, protocol, 1)
				r.create(vol, 256)
				r.create(vol2, 256)
				r.export(vol)
				h := &steps{Host: r.host}
				r.must(life(r, h, c))
				if len(h.log) < 15 {
					t.Fatalf("%d steps: does the host count them? %v", len(h.log), h.log)
				}
				r.clean()
				for at := 1; at <= len(h.log); at++ {
					for _, again := range []bool{true, false} {
						what := fmt.Sprintf("after step %d (%s), again=%t", at, h.log[at-1], again)
						killedAt(r, c, at, again, what)
						if t.Failed() {
							t.Fatal(what)
						}
					}
				}
			})
		})
	}
}

func life(r *rig, h *steps, c *csi.VolumeCapability) error {
	r.contexts[vol]["fsOwner"] = "1000:1000"
	s := r.service(h)
	for _, f := range []func() error{
		func() error { return r.stage(s, vol, c) },
		func() error { return r.publish(s, vol, "p1", c) },
		func() error { return r.unpublish(s, vol, "p1") },
		func() error { return r.unstage(s, vol) },
	} {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

func killedAt(r *rig, c *csi.VolumeCapability, at int, again bool, what string) {
	r.reset()
	r.export(vol)
	h := &steps{Host: r.host, last: at, after: true}
	err := life(r, h, c)
	if !h.dead {
		r.t.Fatalf("%s: not reached (%v)", what, err)
	}
	s := r.service(r.host)
	if again {
		r.must(r.stage(s, vol, c))
		r.must(r.publish(s, vol, "p1", c))
		p := targetOf(vol, "p1")
		if c.GetMount() != nil {
			p += "/data"
		}
		r.write(p, "hello")
	}
	r.must(r.unpublish(s, vol, "p1"))
	r.must(r.unstage(s, vol))
	r.clean()
	r.unexport(vol)
	r.export(vol2)
	r.must(r.stage(s, vol2, c))
	r.must(r.unstage(s, vol2))
	r.clean()
}

// reset makes volumes blank and takes them, and its sessions, from the node.
func (r *rig) reset() {
	r.t.Helper()
	for _, x := range r.array(1).Exports() {
		r.must(r.array(1).RemoveVLUN(x.Volume, x.Host))
	}
	wipe(r)
	r.logout()
}

// quiet is a test whose log isn't printed unless it says so itself.
type quiet struct{ testing.TB }

func (quiet) Log(...any)          {}
func (quiet) Logf(string, ...any) {}

// Any order of what the array, the network and the orchestrator do, with
// crashes: no byte of a volume is ever in another one, and in the end nothing is
// left.
func TestAnyOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		inBubble(t, func(t *testing.T) {
			r := newRig(quiet{t}, rapid.SampledFrom([]string{"iscsi", "fc"}).Draw(rt, "protocol"), 1)
			defer r.close()
			r.cfg.Wait = 2 * time.Second
			volumes := []string{vol, vol2, "pvc-33333333-3333-3333-3333-333333333333"}
			for _, v := range volumes {
				r.create(v, 256)
			}
			exported := map[string]bool{}
			// sound: staged since it was exported. What was taken from the node by force
			// has stale paths until a stage looks at them; nothing tells the node.
			sound := map[string]bool{}
			killed := false
			s := r.service(r.host)
			c := block(writer)
			pick := func(rt *rapid.T) string { return rapid.SampledFrom(volumes).Draw(rt, "volume") }
			rt.Repeat(map[string]func(*rapid.T){
				"export": func(rt *rapid.T) {
					if v := pick(rt); !exported[v] {
						r.export(v)
						exported[v] = true
					}
				},
				// By force: without unstage before.
				"unexport": func(rt *rapid.T) {
					if v := pick(rt); exported[v] {
						r.unexport(v)
						exported[v], sound[v] = false, false
					}
				},
				"stage": func(rt *rapid.T) {
					v := pick(rt)
					if r.contexts[v] == nil {
						return
					}
					if r.stage(s, v, c) != nil {
						return
					}
					sound[v] = exported[v]
					if r.publish(s, v, "p1", c) != nil {
						return
					}
					// Either it says that it failed, or it is in this volume.
					if r.host.WriteAt(targetOf(v, "p1"), 0, []byte(v), true) == nil && r.begins(v, len(v)) != v {
						rt.Fatalf("what was written to %s isn't there", v)
					}
				},
				"write": func(rt *rapid.T) {
					v := pick(rt)
					if fi, err := r.host.Stat(targetOf(v, "p1")); err != nil || fi.Mode()&fs.ModeDevice == 0 {
						return
					}
					if !sound[v] {
						return
					}
					// Unsynced, it is written when the volume leaves.
					_ = r.host.WriteAt(targetOf(v, "p1"), 0, []byte(v), rapid.Bool().Draw(rt, "sync"))
				},
				"unstage": func(rt *rapid.T) {
					v := pick(rt)
					if err := r.unpublish(s, v, "p1"); err != nil {
						rt.Fatal(err)
					}
					if err := r.unstage(s, v); err != nil {
						rt.Fatal(err)
					}
				},
				"restart": func(*rapid.T) { s = r.service(r.host) },
				"killed": func(rt *rapid.T) {
					v := pick(rt)
					if r.contexts[v] == nil {
						return
					}
					h := &steps{Host: r.host, last: rapid.IntRange(1, 20).Draw(rt, "step"), after: rapid.Bool().Draw(rt, "after")}
					k := r.service(h)
					killed = true
					_ = r.stage(k, v, c)
					_ = r.publish(k, v, "p1", c)
					_ = r.unpublish(k, v, "p1")
					_ = r.unstage(k, v)
				},
				"port": func(rt *rapid.T) {
					all := r.positions(r.array(1))
					p := rapid.SampledFrom(all).Draw(rt, "port")
					r.must(r.fabric.PortDown("array1", p, rapid.Bool().Draw(rt, "down")))
				},
				"": func(rt *rapid.T) {
					for _, v := range volumes {
						if got := r.begins(v, len(v)); got != "" && got != v {
							rt.Fatalf("%s has data of %s", v, got)
						}
					}
				},
			})
			r.allPorts(false)
			s = r.service(r.host)
			for _, v := range volumes {
				if err := errors.Join(r.unpublish(s, v, "p1"), r.unstage(s, v)); err != nil {
					rt.Fatal(err)
				}
			}
			// Over FC, a port that comes back shows all that is exported. A driver that
			// is killed in a scan for a volume that isn't there may leave who is.
			if r.protocol == "iscsi" && !killed {
				r.clean()
			}
			for _, v := range volumes {
				if !exported[v] {
					r.export(v)
				}
				if err := r.stage(s, v, c); err != nil {
					rt.Fatal(err)
				}
			}
		})
	})
}
