package sim_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/csilab/csilab/scenarios"
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/csp"
	"github.com/csilab/csilab/sim/san"
)

// sites are two arrays with names, users, CPGs and hosts of their own.
func sites() *sim.Storage {
	user := func(name string) []array.User {
		return []array.User{{Name: name, Password: "of-" + name, Role: array.Edit}, {Name: "guest", Password: "g", Role: array.Browse}}
	}
	return &sim.Storage{
		SAN: san.Config{
			Arrays: []san.ArrayConfig{
				{Config: array.Config{Name: "here", Family: array.ThreePAR, Users: user("csi"), Domains: []string{"prod"}},
					CPGs:  []array.CPGSpec{{Name: "prod", Domain: "prod"}, {Name: "fast", GrowthLimitMiB: 64 << 10}},
					Hosts: []san.HostConfig{{HostSpec: array.HostSpec{Name: "db-1", ISCSINames: []string{"iqn.1994-05.com.redhat:db-1"}}}}},
				{Config: array.Config{Name: "there", Users: user("peer")}},
			},
			Pairs: []san.Pair{{"there", "here"}},
		},
		Devices: map[string]csp.ReplicationDevice{"there": {TargetName: "there", TargetCPG: san.DefaultCPG, TargetMode: "sync", TargetUser: "peer", TargetPassword: "of-peer"}},
	}
}

// TestScenariosOnGivenArrays: what fits any lab fits one whose arrays are given,
// a rotated password and what is made by hand among it.
func TestScenariosOnGivenArrays(t *testing.T) {
	for _, name := range []string{"lifecycle-filesystem", "session-lost", "snapshot-restore", "static-volume-retain"} {
		s, ok := scenarios.Find(name)
		if !ok || s.Options != nil {
			t.Fatalf("no scenario %s that fits any lab", name)
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, s, sim.Options{Backend: sim.HPE, Storage: sites()})
		})
	}
}

func TestOptionsOfStorage(t *testing.T) {
	for want, change := range map[string]func(*sim.Options){
		"backend vsphere has no arrays": func(o *sim.Options) { o.Backend = sim.VSphere },
		"Arrays is 2":                   func(o *sim.Options) { o.Arrays = 2 },
		"has 0 arrays":                  func(o *sim.Options) { o.Storage = &sim.Storage{} },
		`array "here" is given twice`:   func(o *sim.Options) { o.Storage.SAN.Arrays[1].Name = "here" },
		"no port for fc": func(o *sim.Options) {
			o.Protocol = "fc"
			o.Storage.SAN.Arrays[0].Ports = []array.Port{{PortPos: array.PortPos{Node: 0, Slot: 2, Card: 1}, Protocol: array.ISCSI, Type: array.ISCSIPort, Address: "10.1.0.1"}}
		},
		"no CPG that is in no domain": func(o *sim.Options) { o.Storage.SAN.Arrays[0].CPGs = o.Storage.SAN.Arrays[0].CPGs[:1] },
	} {
		o := sim.Options{Backend: sim.HPE, Host: "memory", Storage: sites()}
		change(&o)
		lab, err := sim.Start(context.Background(), o)
		if err == nil {
			lab.Close()
			err = fmt.Errorf("started")
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
