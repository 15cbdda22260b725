package cnsface

import (
	"sync"
	"testing"

	"github.com/vmware/govmomi/simulator"
)

// building: vcsim's license manager writes to a variable of its package
// (simulator/license_manager.go:57), so inventories are built one by one.
var building sync.Mutex

// SmallModel builds a vCenter with two VMs and some datastores.
func SmallModel(t testing.TB, datastores int) *simulator.Model {
	t.Helper()
	m := simulator.VPX()
	m.Host, m.ClusterHost, m.Machine, m.Datastore = 0, 1, 2, datastores
	building.Lock()
	err := m.Create()
	building.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Remove)
	return m
}
