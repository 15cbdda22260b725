package sim

import (
	"fmt"
	"maps"
	"slices"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/csp"
	"github.com/csilab/csilab/sim/san"
)

// Storage says which arrays a lab has. The lab fills in what belongs to it: of
// the SAN Seed, Store, In, Component and Log, of each array its Listener.
type Storage struct {
	SAN san.Config
	// Devices that the storage provider can replicate to, by name. One named
	// "pair", which the lab's classes use, leads to the array that the first one is
	// paired with, where no other has the name.
	Devices map[string]csp.ReplicationDevice
}

// pairDevice is the replication device that the lab's classes name.
const pairDevice = "pair"

// storage are the arrays of a lab: the given ones, or as many as the options
// say, all alike.
func (o Options) storage() Storage {
	var s Storage
	if o.Storage != nil {
		s = *o.Storage
		s.SAN.Arrays = slices.Clone(s.SAN.Arrays)
		s.Devices = maps.Clone(s.Devices)
	} else {
		for i := range max(1, o.Arrays) {
			name := fmt.Sprintf("array%d", i+1)
			s.SAN.Arrays = append(s.SAN.Arrays, san.ArrayConfig{Config: array.Config{Name: name, CopyMiBs: o.CopyMiBs}})
			if i%2 == 1 {
				s.SAN.Pairs = append(s.SAN.Pairs, san.Pair{fmt.Sprintf("array%d", i), name})
			}
		}
	}
	if s.Devices == nil {
		s.Devices = map[string]csp.ReplicationDevice{}
	}
	if _, taken := s.Devices[pairDevice]; !taken {
		if d, ok := s.peer(); ok {
			s.Devices[pairDevice] = d
		}
	}
	return s
}

// peer leads to the array that the first one is paired with.
func (s Storage) peer() (csp.ReplicationDevice, bool) {
	first := s.SAN.Arrays[0].Name
	for _, p := range s.SAN.Pairs {
		if p[0] != first && p[1] != first {
			continue
		}
		name := p[1]
		if name == first {
			name = p[0]
		}
		if d, ok := s.Devices[name]; ok {
			return d, true
		}
		i := slices.IndexFunc(s.SAN.Arrays, func(a san.ArrayConfig) bool { return a.Name == name })
		cpg, snap := cpgsOf(s.SAN.Arrays[i])
		return csp.ReplicationDevice{TargetName: name, TargetCPG: cpg, TargetSnapCPG: snap}, true
	}
	return csp.ReplicationDevice{}, false
}

// cpgsOf are the CPGs of an array that volumes and their snapshots go to where
// nobody says another: the first two that are in no domain.
func cpgsOf(a san.ArrayConfig) (cpg, snap string) {
	if a.CPGs == nil {
		return san.DefaultCPG, san.DefaultSnapCPG
	}
	for _, c := range a.CPGs {
		switch {
		case c.Domain != "":
		case cpg == "":
			cpg = c.Name
		case snap == "":
			snap = c.Name
		}
	}
	if snap == "" {
		snap = cpg
	}
	return cpg, snap
}

// loginOf is who the driver's Secret names for an array.
func loginOf(a san.ArrayConfig) (name, password string) {
	if len(a.Users) == 0 {
		return san.DefaultUser, san.DefaultPassword
	}
	return a.Users[0].Name, a.Users[0].Password
}

// validateStorage wants arrays that nodes of the lab reach.
func (o Options) validateStorage() error {
	if o.Storage == nil {
		return nil
	}
	if o.Backend != HPE {
		return fmt.Errorf("Options.Storage: backend %s has no arrays", o.Backend)
	}
	if o.Arrays != 0 || o.CopyMiBs != 0 {
		return fmt.Errorf("Options.Storage says which arrays there are: Arrays is %d and CopyMiBs %d, allowed is 0", o.Arrays, o.CopyMiBs)
	}
	s := o.Storage.SAN
	if len(s.Arrays) == 0 || len(s.Arrays) > 8 {
		return fmt.Errorf("Options.Storage has %d arrays, allowed are 1 to 8", len(s.Arrays))
	}
	if err := s.Check(); err != nil {
		return fmt.Errorf("Options.Storage: %w", err)
	}
	want := map[string]array.Protocol{"iscsi": array.ISCSI, "fc": array.FC}[o.Protocol]
	first := s.Arrays[0]
	if first.Ports != nil && !slices.ContainsFunc(first.Ports, func(p array.Port) bool { return p.Protocol == want }) {
		return fmt.Errorf("Options.Storage: array %s has no port for %s", first.Name, o.Protocol)
	}
	if cpg, _ := cpgsOf(first); cpg == "" {
		return fmt.Errorf("Options.Storage: array %s has no CPG that is in no domain", first.Name)
	}
	return nil
}
