package scenarios

import (
	"context"
	"fmt"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/vcenter"
)

func init() {
	register(Scenario{
		Name:   "datastore-unusable",
		Text:   "one of two datastores is suspended, in maintenance mode or not accessible, or a host is in maintenance mode: volumes go to the other one, and to none when there is none",
		Labels: []string{"provision", "placement"},
		Incidents: []string{"V25 kubernetes-sigs/vsphere-csi-driver#1549, kubernetes-sigs/vsphere-csi-driver#3943, kubernetes-sigs/vsphere-csi-driver#3946, " +
			"vmware-archive/vsphere-storage-for-docker#1651, cloudfoundry/bosh-vsphere-cpi-release#46"},
		Backends: []string{sim.VSphere},
		// Three hosts, one of them without a node.
		Options: func(o *sim.Options) {
			o.VCenters = []sim.VCenter{{Name: "vc-1", Config: vcenter.Config{
				Nodes:       []vcenter.Node{{Name: "node-1"}, {Name: "node-2"}},
				Datacenters: []vcenter.Datacenter{{Name: "DC0", Clusters: []vcenter.Cluster{{Name: "DC0_C0", Hosts: []vcenter.Host{{Name: "DC0_H0"}, {Name: "DC0_H1"}, {Name: "DC0_H2"}}}}}},
			}}}
		},
		Flow:     datastoreUnusable,
		Mutation: "a placement that does not look at the state of datastores",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "the state is not looked at", Hop: ledger.CSI, Op: "CreateVolume", MayNotFire: true,
				Do: fault.Func("all are well", func(context.Context, fault.Call) error {
					for _, d := range l.VCenter().DatastoreNames() {
						for _, s := range datastoreStates {
							_ = s.set(l, d, false) // some are as they should be
						}
					}
					return nil
				})})
		},
	})
}

// datastoreStates are those in which a datastore takes no new volume.
var datastoreStates = []struct {
	name string
	set  func(l *sim.Lab, datastore string, on bool) error
}{
	{"suspended", func(l *sim.Lab, d string, on bool) error { return l.VCenter().SuspendDatastore(d, on) }},
	{"in-maintenance", func(l *sim.Lab, d string, on bool) error { return l.VCenter().DatastoreMaintenance(d, on) }},
	{"not-accessible", func(l *sim.Lab, d string, on bool) error {
		for _, h := range l.VCenter().Hosts() {
			if err := l.VCenter().DatastoreAccessible(d, h, !on); err != nil {
				return err
			}
		}
		return nil
	}},
}

// homeOf is the datastore of a claim's volume.
func homeOf(l *sim.Lab, pvc string) (string, error) {
	for _, v := range l.VCenter().Volumes() {
		for _, d := range l.VCenter().DatastoreList() {
			if v.ID == l.VolumeID(pvc) && v.Datastore == d.Ref {
				return d.Name, nil
			}
		}
	}
	return "", fmt.Errorf("the vCenter has no volume of %s: %w", pvc, errUnexpected)
}

func datastoreUnusable(ctx context.Context, l *sim.Lab) error {
	var claims []string
	// made makes a claim and says where its volume lies.
	made := func(name string) (home string, err error) {
		if err := l.Create(ctx, claim(name, "fast", "256Mi")); err != nil {
			return "", err
		}
		if _, err := l.Bound(ctx, name); err != nil {
			return "", err
		}
		claims = append(claims, name)
		return homeOf(l, name)
	}
	all := l.VCenter().DatastoreNames()
	if len(all) < 2 {
		return fmt.Errorf("the vCenter has the datastores %q, two are needed: %w", all, errUnexpected)
	}
	var flows []func() error
	for _, s := range datastoreStates {
		flows = append(flows,
			func() error {
				// Where the next one would go.
				bad, err := made("before-" + s.name)
				if err != nil {
					return err
				}
				if err := s.set(l, bad, true); err != nil {
					return err
				}
				home, err := made("while-" + s.name)
				if err == nil && home == bad {
					err = fmt.Errorf("a volume was made on %s, which is %s: %w", bad, s.name, errUnexpected)
				}
				if err != nil {
					return err
				}
				return s.set(l, bad, false)
			},
			func() error {
				waits, n := claim("none-"+s.name, "fast", "256Mi"), l.BackendVolumes()
				for _, d := range all {
					if err := s.set(l, d, true); err != nil {
						return err
					}
				}
				return steps(
					func() error { return l.Create(ctx, waits) },
					func() error { return l.HasEvent(ctx, waits, "ProvisioningFailed", "ResourceExhausted") },
					func() error { return noteEvent(l, "all are "+s.name, waits, "ProvisioningFailed") },
					func() error { return backendVolumes(l, n) },
					func() error {
						for _, d := range all {
							if err := s.set(l, d, false); err != nil {
								return err
							}
						}
						return nil
					},
					func() error { _, err := l.Bound(ctx, waits.Name); claims = append(claims, waits.Name); return err },
				)
			})
	}
	flows = append(flows,
		// A host without VMs goes into maintenance mode: that leaves all
		// datastores as shared as they were.
		func() error {
			vc, idle := l.VCenter(), ""
			used := map[string]bool{}
			for _, n := range l.Nodes() {
				used[vc.HostOf(n)] = true
			}
			for _, h := range vc.Hosts() {
				if !used[h] {
					idle = h
				}
			}
			if idle == "" {
				return fmt.Errorf("each host has a node: %w", errUnexpected)
			}
			if err := vc.HostMaintenance(idle, true); err != nil {
				return err
			}
			// It does not count, whatever it still reaches.
			for _, d := range all {
				if err := vc.DatastoreAccessible(d, idle, false); err != nil {
					return err
				}
			}
			if _, err := made("host-in-maintenance"); err != nil {
				return step(err, "host %s in maintenance mode", idle)
			}
			for _, d := range all {
				if err := vc.DatastoreAccessible(d, idle, true); err != nil {
					return err
				}
			}
			return vc.HostMaintenance(idle, false)
		},
		func() error { return l.Check(ctx) },
		func() error { return removed(ctx, l, nil, claims) },
	)
	return steps(flows...)
}
