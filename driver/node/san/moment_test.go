package san_test

import (
	"context"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/utils/exec"

	"github.com/csilab/csilab/sim/host"
)

// moments notes what a driver writes and runs, and when; to write takes a while.
type moments struct {
	host.Host
	write time.Duration

	mu  sync.Mutex
	ops []string
	at  []time.Time
}

func (m *moments) note(op string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ops, m.at = append(m.ops, op), append(m.at, time.Now())
}

func (m *moments) WriteFile(p string, data []byte, perm fs.FileMode) error {
	m.note("write " + p + " " + string(data))
	time.Sleep(m.write)
	return m.Host.WriteFile(p, data, perm)
}

func (m *moments) Exec() exec.Interface { return momentExec{m.Host.Exec(), m} }

type momentExec struct {
	exec.Interface
	m *moments
}

func (e momentExec) CommandContext(ctx context.Context, cmd string, args ...string) exec.Cmd {
	e.m.note(strings.Join(append([]string{cmd}, args...), " "))
	return e.Interface.CommandContext(ctx, cmd, args...)
}

// first is the first operation with a text in it, or -1.
func (m *moments) first(text string) int {
	return slices.IndexFunc(m.ops, func(op string) bool { return strings.Contains(op, text) })
}

// A volume that waits for another's turn gets it once that one is noted, cleaned up
// for and logged in: turns in between would be for who of both is scheduled first.
func TestTurnUntilLogin(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, "iscsi", 1)
		h := &moments{Host: r.host, write: time.Second}
		s := r.service(h)
		var staged sync.WaitGroup
		for _, v := range []string{vol, vol2} {
			r.create(v, 256)
			r.export(v)
		}
		for _, v := range []string{vol, vol2} {
			staged.Go(func() {
				if err := r.stage(s, v, filesystem("ext4")); err != nil {
					t.Errorf("%s: %v", v, err)
				}
			})
			time.Sleep(100 * time.Millisecond) // the first is being noted
		}
		staged.Wait()
		login, second := h.first("--login"), h.first(`"volume":"`+vol2+`"`)
		if login < 0 || second < login {
			t.Errorf("the second volume's note is operation %d, the login for the first is %d:\n%s", second, login, strings.Join(h.ops, "\n"))
		}
	})
}

// Volumes that are looked for from one moment on are looked for again, and given up,
// one after the other, so that they never ask for a turn at one moment.
func TestVolumesOfAMomentLookApart(t *testing.T) {
	protocols(t, func(t *testing.T, r *rig) {
		h := &moments{Host: r.host}
		s := r.service(h)
		luns := map[string]string{} // what a scan for a volume's LUN ends with
		for _, v := range []string{vol, vol2} {
			r.create(v, 256)
			luns[" "+string(rune('0'+r.export(v)))] = v
		}
		for _, v := range []string{vol, vol2} {
			r.unexport(v)
		}
		start := time.Now()
		var staged sync.WaitGroup
		var mu sync.Mutex
		var ends []time.Time
		for _, v := range []string{vol, vol2} {
			staged.Go(func() {
				if r.stage(s, v, filesystem("ext4")) == nil {
					t.Errorf("%s is staged without an export", v)
				}
				mu.Lock()
				defer mu.Unlock()
				ends = append(ends, time.Now())
			})
		}
		staged.Wait()
		if ends[0].Equal(ends[1]) {
			t.Errorf("both end after %v", ends[0].Sub(start))
		}
		scans, whose := 0, map[time.Time]string{}
		for i, op := range h.ops {
			if !strings.Contains(op, "/scan ") || !h.at[i].After(start) {
				continue
			}
			scans++
			v := luns[op[len(op)-2:]]
			if was := whose[h.at[i]]; was != "" && was != v {
				t.Errorf("both are looked for after %v", h.at[i].Sub(start))
			}
			whose[h.at[i]] = v
		}
		if scans < 20 {
			t.Errorf("%d scans: %q", scans, h.ops)
		}
	})
}
