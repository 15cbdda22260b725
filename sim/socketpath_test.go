package sim_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/host"
)

// The state directory may be as long as the sockets of the lab allow, and not a
// byte longer.
func TestLengthOfTheStateDirectory(t *testing.T) {
	hosts := []string{"memory"}
	if host.RealSupported() == nil {
		hosts = append(hosts, "real")
	}
	for _, h := range hosts {
		for name, o := range map[string]sim.Options{
			"vsphere":       {Backend: sim.VSphere},
			"hpe":           {Backend: sim.HPE},
			"vsphere on 12": {Backend: sim.VSphere, Nodes: 12},
		} {
			t.Run(h+" "+name, func(t *testing.T) {
				tmp, err := os.MkdirTemp("", "")
				if err != nil {
					t.Fatal(err)
				}
				defer os.RemoveAll(tmp)
				o.Host, o.StateRoot = h, tmp
				room := sim.MaxSocket - len(sim.LongestSocket(o)) - 1
				if room < 1 {
					t.Skipf("%s is too long itself", tmp)
				}
				o.StateRoot = filepath.Join(tmp, strings.Repeat("x", room+1))
				var want *sim.EnvironmentError
				if err := sim.Preflight(o); !errors.As(err, &want) || !strings.Contains(err.Error(), "is 1 bytes too long") {
					t.Errorf("a byte too long: %v", err)
				}
				o.StateRoot = filepath.Join(tmp, strings.Repeat("x", room))
				longest := sim.LongestSocket(o)
				if err := os.MkdirAll(filepath.Dir(longest), 0o700); err != nil {
					t.Fatal(err)
				}
				l, err := net.Listen("unix", longest)
				if err != nil {
					t.Fatalf("%d bytes: %v", len(longest), err)
				}
				l.Close()
				if l, err := net.Listen("unix", longest+"x"); err == nil {
					l.Close()
					t.Errorf("%d bytes can be listened on too", len(longest)+1)
				}
				if err := os.RemoveAll(o.StateRoot); err != nil {
					t.Fatal(err)
				}
				// The lab has that socket, and none that is longer.
				lab, err := sim.Start(context.Background(), o)
				if err != nil {
					t.Fatal(err)
				}
				defer func() {
					if err := lab.Close(); err != nil {
						t.Error(err)
					}
				}()
				if err := lab.NodesReady(t.Context()); err != nil {
					t.Fatal(err)
				}
				got := ""
				random := regexp.MustCompile(`^l[0-9]+`)
				err = filepath.WalkDir(o.StateRoot, func(p string, e fs.DirEntry, err error) error {
					if err != nil || e.Type()&fs.ModeSocket == 0 {
						return nil // what goes meanwhile is no socket
					}
					rel, err := filepath.Rel(o.StateRoot, p)
					if p := filepath.Join(o.StateRoot, random.ReplaceAllString(rel, "l4294967295")); len(p) >= len(got) {
						got = p
					}
					return err
				})
				if err != nil || got != longest {
					t.Errorf("the longest socket is %s (%v), want %s", got, err, longest)
				}
			})
		}
	}
}
