package sanity_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/csilab/csilab/driver"
	"github.com/csilab/csilab/driver/hpe"
	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/csp"
	"github.com/csilab/csilab/sim/fileservice"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/san"
)

const bios = "420a1f3c-7b6d-4e5f-8a90-1b2c3d4e5f60"

func startISCSI(t *testing.T, p *platform) *world {
	return startHPE(t, p, "iscsi", host.Adapters{IQN: "iqn.1994-05.com.redhat:sanity", Networks: []string{"10.0.0.11/24"}})
}

func startFC(t *testing.T, p *platform) *world {
	return startHPE(t, p, "fc", host.Adapters{WWPNs: []string{"100000109b000001", "100000109b010001"}})
}

// startFiles has a file service, whose shares the node mounts.
func startFiles(t *testing.T, p *platform) *world {
	return startHPE(t, p, "nfs", host.Adapters{IQN: "iqn.1994-05.com.redhat:sanity", Networks: []string{"10.0.0.11/24"}})
}

// startHPE builds a world with an array and its provider. The driver has no
// cluster: a node's id is the node.
func startHPE(t *testing.T, p *platform, protocol string, a host.Adapters) *world {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &world{backend: "hpe", protocol: protocol, disks: p.disks}
	// A clone of 10 GiB is done in 1 ms.
	net_, err := san.New(context.Background(), san.Config{Seed: 11, Store: w.disks, Arrays: []san.ArrayConfig{{Config: array.Config{Name: "array1", CopyMiBs: 10 << 20}}}})
	must(err)
	files := fileservice.New(net_)
	servers := host.NewFileServers(files)
	w.node, err = p.node(bios, net_.For(nodeName, a), a, servers)
	must(err)
	must(w.node.WriteFile(topologyFile, []byte("csi.hpe.com/zone=\"zone-a\"\n"), 0o644))
	array1, _ := net_.Array("array1")
	provider, err := csp.New(context.Background(), csp.Config{Arrays: []csp.Array{{Name: "array1", URL: array1.URL(), Backends: []string{"array1"}, FileService: files.Address("array1")}}})
	must(err)
	t.Cleanup(func() { cancel(); provider.Close(); net_.Close(); w.node.Close(); w.disks.Close() }) // after a failure here

	hostname, port, err := net.SplitHostPort(provider.URL()[len("http://"):])
	must(err)
	secret := map[string]string{"serviceName": hostname, "servicePort": port, "backend": "array1", "username": san.DefaultUser, "password": san.DefaultPassword}
	w.secrets = w.yaml(t, p, "secrets", map[string]any{
		"CreateVolumeSecret": secret, "DeleteVolumeSecret": secret, "ControllerPublishVolumeSecret": secret, "ControllerUnpublishVolumeSecret": secret,
		"ControllerValidateVolumeCapabilitiesSecret": secret, "NodeStageVolumeSecret": secret, "NodePublishVolumeSecret": secret, "CreateSnapshotSecret": secret,
		"DeleteSnapshotSecret": secret, "ControllerExpandVolumeSecret": secret, "ListSnapshotsSecret": secret, "ControllerModifyVolumeSecret": secret,
	})
	parameters := map[string]any{"accessProtocol": protocol, "cpg": san.DefaultCPG, "hostSeesVLUN": "false"}
	if protocol == "nfs" {
		w.backend = "hpe files"
		// The node's id is the node, and has no addresses.
		parameters["accessControlList"] = "10.0.0.0/24"
	}
	if w.node.Kind() == "real" {
		// What mkfs writes goes through FUSE: an ext4 of this size has the least.
		parameters["fsType"], w.size = "ext4", 256<<20
	}
	w.parameters = w.yaml(t, p, "parameters", parameters)
	w.mutable = w.yaml(t, p, "mutable", map[string]any{"snapCpg": san.DefaultSnapCPG})
	log := w.log(t)
	w.controller = filepath.Join(p.dir, "c.sock")
	// ListVolumes has no secrets, so the driver has one of its own.
	controller, err := embed(ctx, driver.Config{Mode: driver.Controller, Backend: driver.HPE, Endpoint: "unix://" + w.controller, HPE: &hpe.Config{Secret: secret},
		StateDir: filepath.Join(p.dir, "state"), Log: log, Version: "test"})
	must(err)
	var plugin <-chan error
	w.plugin, plugin, err = p.plugin(ctx, driver.HPE, w.node, log)
	must(err)
	w.stop = func() error {
		errs := []error{w.leftovers()}
		for _, v := range append(array1.Volumes(), array1.Snapshots()...) {
			errs = append(errs, fmt.Errorf("virtual volume %s is left: %s", v.Name, v.Comment))
		}
		for _, e := range array1.Exports() {
			errs = append(errs, fmt.Errorf("export %v is left", e))
		}
		for _, h := range array1.Hosts() {
			errs = append(errs, fmt.Errorf("host %s is left", h.Name))
		}
		records, err := os.ReadDir(filepath.Join(p.dir, "state"))
		errs = append(errs, err)
		for _, r := range records {
			errs = append(errs, fmt.Errorf("record %s is left", r.Name()))
		}
		cancel()
		errs = append(errs, <-controller, <-plugin)
		provider.Close()
		errs = append(errs, w.node.Close(), servers.Close())
		net_.Close()
		errs = append(errs, w.disks.Close())
		return errors.Join(errs...)
	}
	return w
}

// yaml writes a file of csi-sanity's configuration; JSON is YAML.
func (w *world) yaml(t *testing.T, p *platform, name string, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	f := filepath.Join(p.dir, name+".yaml")
	if err := os.WriteFile(f, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}
