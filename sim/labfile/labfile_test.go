package labfile_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csilab/csilab/fixtures"
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/labfile"
	"github.com/csilab/csilab/sim/san"
	"github.com/csilab/csilab/sim/vcenter"
)

const head = "apiVersion: csilab.dev/v1alpha1\nkind: Lab\n"

func TestDefaults(t *testing.T) {
	lab, err := labfile.Parse("lab.yaml", []byte(head))
	if err != nil {
		t.Fatal(err)
	}
	vs, places := lab.Configs()
	if len(vs) != 1 || len(places) != 1 || vs[0].Name != "vc-1" || len(vs[0].Nodes) != 2 || vs[0].Nodes[1].Name != "node-2" {
		t.Errorf("%+v", vs)
	}
}

// The example is a lab whose vCenters start, with what it says in them.
func TestExamples(t *testing.T) {
	names, err := fs.Glob(fixtures.Labs, "labs/*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		b, err := fixtures.Labs.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lab, err := labfile.Parse(name, b)
		if err != nil {
			t.Fatal(err)
		}
		if arrays, ok := lab.Storage(); ok {
			s, err := san.New(t.Context(), arrays.SAN)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			t.Cleanup(s.Close)
			a := s.Arrays()
			if h := a[0].Hosts(); len(a) != 2 || a[0].Family() != array.ThreePAR || len(h) != 1 || h[0].CHAPName != "db-1" || len(a[0].Ports()) != 3 || len(a[1].Ports()) != 12 || a[0].CPGs()[1].GrowthLimitMiB != 512<<10 {
				t.Errorf("%s: %+v", name, h)
			}
			if d := arrays.Devices["site-b"]; d.TargetName != "site-b" || d.TargetCPG != "SSD_r6" || d.TargetMode != "sync" || arrays.Devices["site-a"].TargetCPG != "NL_r6" {
				t.Errorf("%s: %+v", name, arrays.Devices)
			}
		}
		vs, _ := lab.Configs()
		for i, c := range vs {
			c.Config.Seed = sim.SeedOf(lab.Seed, i, c.Name)
			v, err := vcenter.New(t.Context(), c.Config)
			if err != nil {
				t.Fatalf("%s: %s: %v", name, c.Name, err)
			}
			t.Cleanup(v.Close)
			if name != "labs/two-vcenters.yaml" {
				continue
			}
			switch i {
			case 0:
				if got := v.DatastoreNames(); !slices.Equal(got, []string{"shared", "fast", "local-b", "edge/shared"}) {
					t.Errorf("datastores %q", got)
				}
				for node, want := range map[string][2]string{"a-1": {"zone-a", "region-1"}, "b": {"zone-b", "region-1"}, "edge": {"zone-edge", "region-2"}} {
					if z, r := v.Topology(node); z != want[0] || r != want[1] {
						t.Errorf("%s is in %s, %s", node, z, r)
					}
				}
				if c.TaskLatency["CnsCreateVolume"] != 50*time.Millisecond || c.IdleTimeout != 10*time.Minute || c.Datastores[0].CapacityBytes != 2<<40 {
					t.Errorf("%+v", c.Config)
				}
			case 1:
				if v.Version() != "7.0.3" || v.URL().User.Username() != "csi@vsphere.local" || v.VMUUID("w-2") == "" {
					t.Errorf("%+v", c.Config)
				}
			}
		}
	}
}

// Everything that is wrong is told at once, each with its place.
func TestProblems(t *testing.T) {
	for _, x := range []struct {
		name, file string
		want       []string // beginnings of the lines
	}{
		{"empty", "", []string{"lab.yaml:1:1: the file is empty"}},
		{"comment only", "# nothing\n", []string{"lab.yaml:1:1: the file is empty"}},
		{"no YAML", head + "vcenters: [\n", []string{"lab.yaml:"}},
		{"tab", head + "nodes:\n\t- name: a\n", []string{"lab.yaml:4:1: no YAML"}},
		{"a list", "- a\n", []string{"lab.yaml:1:1: is a list, must be a mapping with apiVersion, kind"}},
		{"two documents", head + "---\n" + head, []string{"lab.yaml:3:1: a second document"}},
		{"no head", "seed: 1\n", []string{"lab.yaml:1:1: apiVersion: missing; it must be csilab.dev/v1alpha1", "lab.yaml:1:1: kind: missing; it must be Lab"}},
		{"another version", "apiVersion: csilab.dev/v2\nkind: Lab\n", []string{`lab.yaml:1:13: apiVersion: is the text "csilab.dev/v2", must be one of csilab.dev/v1alpha1`}},
		{"unknown and twice", head + "sede: 1\nseed: 1\nseed: 2\n", []string{
			"lab.yaml:3:1: sede: unknown field; allowed: apiVersion, kind, seed,", "lab.yaml:5:1: seed: given before, in line 4"}},
		{"types", head + "seed: -1\nhost: cloud\ntimers: 1\nmaxVolumesPerNode: 300\nvcenters: {}\nnodes:\n- name: 7\n  count: '2'\n  poweredOff: yes\n  freeSlots:\n", []string{
			"lab.yaml:3:7: seed: is the number -1, must be a whole number",
			`lab.yaml:4:7: host: is the text "cloud", must be one of auto, real, memory`,
			"lab.yaml:5:9: timers: is the number 1, must be one of fast, real",
			"lab.yaml:6:20: maxVolumesPerNode: is 300, allowed are 1 to 255",
			"lab.yaml:7:11: vcenters: is a mapping, must be a list",
			"lab.yaml:9:9: nodes[0].name: is the number 7, must be a text: put it in quotes",
			`lab.yaml:10:10: nodes[0].count: is the text "2", must be a whole number`,
			`lab.yaml:11:15: nodes[0].poweredOff: is the text "yes", must be true or false`,
			"lab.yaml:12:13: nodes[0].freeSlots: is nothing, must be a whole number",
		}},
		{"anchors", head + "nodes:\n- &a {name: x}\n- *a\n- <<: *a\n", []string{
			"lab.yaml:4:3: nodes[0]: anchors and aliases are not taken", "lab.yaml:5:3: nodes[1]: anchors", "lab.yaml:6:3: nodes[2]: a key is", "lab.yaml:6:3: nodes[2].name: missing"}},
		{"forms", head + `vcenters:
- name: a/b
  version: "8"
  user: root
  listen: :8989
  idleTimeout: 5
  taskLatency: {CnsCreateVolume: -1s, default: x}
  datastores:
  - {name: d, capacity: 1.5.5, type: vmfs}
  - {name: e, capacity: 5}
  policies:
  - {name: p, types: [vsan, x]}
`, []string{
			`lab.yaml:4:9: vcenters[0].name: is "a/b", allowed is 1 to 63 letters`,
			`lab.yaml:5:12: vcenters[0].version: is "8", allowed is three or four numbers`,
			`lab.yaml:6:9: vcenters[0].user: is "root", allowed is name@domain`,
			`lab.yaml:7:11: vcenters[0].listen: is ":8989", allowed is HOST:PORT`,
			`lab.yaml:8:16: vcenters[0].idleTimeout: is the number 5, must be a duration`,
			`lab.yaml:9:34: vcenters[0].taskLatency.CnsCreateVolume: is -1s, allowed are 0s and more`,
			`lab.yaml:9:48: vcenters[0].taskLatency.default: is the text "x", must be a duration`,
			`lab.yaml:11:25: vcenters[0].datastores[0].capacity: is the text "1.5.5", must be a size`,
			`lab.yaml:11:38: vcenters[0].datastores[0].type: is the text "vmfs", must be one of VMFS`,
			`lab.yaml:12:25: vcenters[0].datastores[1].capacity: is 5, allowed are 1Mi and more`,
			`lab.yaml:14:29: vcenters[0].policies[0].types[1]: is the text "x", must be one of VMFS`,
		}},
		{"slots of a release", head + "vcenters:\n- {name: a, version: 7.0.3, denseSlots: true}\n", []string{
			"lab.yaml:4:41: vcenters[0].denseSlots: is for vCenters from version 8.0 on, this one is 7.0.3"}},
		{"references", head + `vcenters:
- name: one
  datacenters:
  - name: dc
    clusters:
    - {name: c, zone: z, hosts: [{name: h}, {name: h}]}
    - {name: c}
  - {name: dc}
  datastores:
  - {name: d, zones: [y], clusters: [c, x], hosts: [h, i]}
  - {name: d}
  - {name: e, datacenter: no}
  - {name: f, fileService: false}
  policies:
  - {name: p, datastores: [d, g]}
nodes:
- {name: n, cluster: no}
- {name: n, vcenter: two}
- {name: m, zone: y}
- {name: o, region: r}
`, []string{
			`lab.yaml:8:52: vcenters[0].datacenters[0].clusters[0].hosts[1].name: "h" is the name of vcenters[0].datacenters[0].clusters[0].hosts[0] too`,
			`lab.yaml:9:14: vcenters[0].datacenters[0].clusters[1].name: "c" is the name`,
			`lab.yaml:10:12: vcenters[0].datacenters[1].name: "dc" is the name`,
			`lab.yaml:12:23: vcenters[0].datastores[0].zones[0]: there is no zone in datacenter dc "y"; there are z`,
			`lab.yaml:12:41: vcenters[0].datastores[0].clusters[1]: there is no cluster in datacenter dc "x"`,
			`lab.yaml:12:56: vcenters[0].datastores[0].hosts[1]: there is no host in datacenter dc "i"`,
			`lab.yaml:13:12: vcenters[0].datastores[1].name: "d" is the name of vcenters[0].datastores[0] in the same datacenter too`,
			`lab.yaml:14:27: vcenters[0].datastores[2].datacenter: there is no datacenter "no"; there are dc`,
			`lab.yaml:15:28: vcenters[0].datastores[3].fileService: is for datastores of type vsan only`,
			`lab.yaml:17:31: vcenters[0].policies[0].datastores[1]: there is no datastore "g"`,
			`lab.yaml:19:3: nodes[0]: there is no host for it`,
			`lab.yaml:20:10: nodes[1].name: node "n" is there already, from nodes[0]`,
			`lab.yaml:20:22: nodes[1].vcenter: there is no vCenter "two"; there are one`,
			`lab.yaml:21:3: nodes[2]: there is no host for it with datacenter "", cluster "", zone "y"; there are dc/c (z)`,
			`lab.yaml:22:21: nodes[3].region: is that of its host`,
		}},
		{"several", head + `vcenters:
- {name: a, listen: "127.0.0.1:1"}
- {name: b, listen: "127.0.0.1:2", datacenters: [{name: dc, zone: z}]}
- {name: b}
nodes:
- {name: n}
- {name: m, zone: y}
- {name: k, count: 64, zone: z}
`, []string{
			"lab.yaml:4:3: vcenters[0]: has no zone", "lab.yaml:5:21: vcenters[1].listen: host 127.0.0.1 is that of vcenters[0] too",
			"lab.yaml:6:3: vcenters[2]: has no zone", `lab.yaml:6:10: vcenters[2].name: "b" is the name of vcenters[1] too`,
			"lab.yaml:8:1: nodes: there are 66, allowed are up to 64",
			"lab.yaml:8:3: nodes[0]: which vCenter it is in is not known", `lab.yaml:9:19: nodes[1].zone: which vCenter "y" is in is not known`,
		}},
		{"users", head + `vcenters:
- {name: a, users: [{name: Administrator@vsphere.local, password: p}]}
- {name: b, user: csi@x, users: [{name: administrator@vsphere.local, password: p}, {name: CSI@x, password: p}]}
nodes: [{name: n, vcenter: a, zone: y}, {name: m, vcenter: b, zone: z}]
`, []string{
			`lab.yaml:4:28: vcenters[0].users[0].name: "administrator@vsphere.local" is the name of vcenters[0].user too`,
			`lab.yaml:5:91: vcenters[1].users[1].name: "csi@x" is the name of vcenters[1].user too`,
		}},
		{"arrays", head + `arrays:
- name: a-name-that-is-longer-than-an-array-takes
  family: 3PAR
  user: a b
  controllers: 9
  cpgs: [{name: -c, raid: 7}]
  ports: [{at: 8:1:1, protocol: scsi, address: here}]
  hosts: [{name: h, iqns: [iqn], wwpns: [1000], persona: 12, chapSecret: short}]
  domains: [a/b]
`, []string{
			"lab.yaml:4:9: arrays[0].name: has 41 characters, allowed are up to 31",
			`lab.yaml:5:11: arrays[0].family: is the text "3PAR", must be one of primera, 3par`,
			`lab.yaml:6:9: arrays[0].user: is "a b", allowed is letters`,
			"lab.yaml:7:16: arrays[0].controllers: is 9, allowed are 2 to 8",
			`lab.yaml:8:17: arrays[0].cpgs[0].name: is "-c", allowed is letters`,
			"lab.yaml:8:27: arrays[0].cpgs[0].raid: is 7, allowed are 0 to 6",
			`lab.yaml:9:16: arrays[0].ports[0].at: is "8:1:1", allowed is node:slot:port`,
			`lab.yaml:9:33: arrays[0].ports[0].protocol: is the text "scsi", must be one of fc, iscsi, nvme`,
			`lab.yaml:9:48: arrays[0].ports[0].address: is "here", allowed is an IP address`,
			`lab.yaml:10:28: arrays[0].hosts[0].iqns[0]: is "iqn", allowed is an iSCSI name`,
			`lab.yaml:10:42: arrays[0].hosts[0].wwpns[0]: is the number 1000, must be a text: put it in quotes`,
			"lab.yaml:10:58: arrays[0].hosts[0].persona: is 12, allowed are 1 to 11",
			"lab.yaml:10:74: arrays[0].hosts[0].chapSecret: has 5 characters, allowed are 12 to 16",
			`lab.yaml:11:13: arrays[0].domains[0]: is "a/b", allowed is letters`,
		}},
		{"arrays' references", head + `arrays:
- name: a
  listen: 127.0.0.1:1
  users: [{name: 3paradm, password: p}]
  domains: [d]
  cpgs: [{name: c, domain: e}, {name: c, limit: 1Gi, warning: 2Gi, raid: 3}]
  ports:
  - {at: '0:2:1', protocol: iscsi}
  - {at: '0:2:1', protocol: iscsi, address: 198.51.100.10}
  - {at: '2:1:1', protocol: fc, address: 10.0.0.2}
  hosts:
  - {name: h, iqns: [iqn.2000-01.a.b:c]}
  - {name: h, iqns: [iqn.2000-01.a.b:C], chapUser: u}
  - {name: g, iqns: [iqn.2000-01.a.b:d], wwpns: ['1000000000000001']}
- {name: b, listen: '127.0.0.1:2'}
- {name: b}
pairs:
- {first: a, second: a}
- {first: a, second: b, secondCPG: x}
- {first: b, second: a}
- {first: c, second: a}
`, []string{
			`lab.yaml:6:18: arrays[0].users[0].name: "3paradm" is the name of arrays[0].user too`,
			`lab.yaml:8:28: arrays[0].cpgs[0].domain: there is no domain "e"; there are d`,
			`lab.yaml:8:39: arrays[0].cpgs[1].name: "c" is the name of arrays[0].cpgs[0] too`,
			"lab.yaml:8:63: arrays[0].cpgs[1].warning: is beyond the limit",
			"lab.yaml:8:74: arrays[0].cpgs[1].raid: is 3, allowed are 0, 1, 5 and 6",
			"lab.yaml:10:5: arrays[0].ports[0].address: missing: ports of iscsi have one",
			"lab.yaml:11:10: arrays[0].ports[1].at: 0:2:1 is the place of arrays[0].ports[0] too",
			`lab.yaml:11:45: arrays[0].ports[1].address: is that of port 0:2:1 of array "b" too`,
			"lab.yaml:12:10: arrays[0].ports[2].at: is on node 2, there are nodes 0 to 1",
			"lab.yaml:12:42: arrays[0].ports[2].address: FC ports have none",
			`lab.yaml:15:12: arrays[0].hosts[1].name: "h" is the name of arrays[0].hosts[0] too`,
			`lab.yaml:15:22: arrays[0].hosts[1].iqns[0]: "iqn.2000-01.a.b:c" is that of arrays[0].hosts[0] too`,
			"lab.yaml:15:52: arrays[0].hosts[1].chapUser: only with chapSecret",
			"lab.yaml:16:49: arrays[0].hosts[2].wwpns: not with iqns",
			"lab.yaml:17:21: arrays[1].listen: host 127.0.0.1 is that of arrays[0] too",
			`lab.yaml:18:10: arrays[2].name: "b" is the name of arrays[1] too`,
			`lab.yaml:20:22: pairs[0].second: "a" is the first as well`,
			`lab.yaml:21:36: pairs[1].secondCPG: array b has no CPG "x"; it has SSD_r6, SSD_r6_snap`,
			"lab.yaml:22:3: pairs[2]: is the same as pairs[1]",
			`lab.yaml:23:11: pairs[3].first: there is no array "c"; there are a, b, b`,
		}},
		{"size", strings.Repeat("#", 1<<20+1), []string{"lab.yaml:1:1: the file has more than 1048576 bytes"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			_, err := labfile.Parse("lab.yaml", []byte(x.file))
			var ps labfile.Problems
			if !errors.As(err, &ps) {
				t.Fatalf("%T: %v", err, err)
			}
			got := strings.Split(err.Error(), "\n")
			for i := range max(len(got), len(x.want)) {
				switch {
				case i >= len(got):
					t.Errorf("missing: %s", x.want[i])
				case i >= len(x.want):
					t.Errorf("not expected: %s", got[i])
				case !strings.HasPrefix(got[i], x.want[i]):
					t.Errorf("got  %s\nwant %s", got[i], x.want[i])
				}
			}
		})
	}
}

// A file without an end is read as far as a lab file may be long.
func TestLoadEndless(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no /dev/zero")
	}
	_, err := labfile.Load("/dev/zero")
	if err == nil || !strings.Contains(err.Error(), "/dev/zero:1:1: the file has more than 1048576 bytes") {
		t.Fatal(err)
	}
}

// What Parse takes starts, as far as that can be tried without a vCenter: no
// name is missing, and every node has a vCenter.
func FuzzParse(f *testing.F) {
	f.Add([]byte(head))
	names, _ := fs.Glob(fixtures.Labs, "labs/*.yaml")
	for _, n := range names {
		b, _ := fixtures.Labs.ReadFile(n)
		f.Add(b)
	}
	f.Add([]byte(head + "nodes: [{name: a, count: 3}, {name: a-1}]\n"))
	f.Add([]byte(head + "vcenters: [{name: x, taskLatency: {default: 1h}, datastores: [{name: d, capacity: 1Gi}]}]\n"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Add([]byte(head + "arrays: [{name: a, family: 3par, cpgs: [{name: c, limit: 1Gi, raid: 5}], ports: [{at: '0:2:1', protocol: iscsi, address: 10.0.0.1}], hosts: [{name: h, iqns: [iqn.2000-01.a.b:c], chapSecret: twelve-chars}]}]\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		lab, err := labfile.Parse("f", b)
		var ps labfile.Problems
		if err != nil {
			if !errors.As(err, &ps) || len(ps) == 0 {
				t.Fatalf("%T: %v", err, err)
			}
			for _, p := range ps {
				if p.Line < 1 || p.Column < 1 || p.Text == "" {
					t.Errorf("%+v", p)
				}
			}
			return
		}
		if arrays, ok := lab.Storage(); ok {
			if err := arrays.SAN.Check(); err != nil {
				t.Errorf("taken, but the arrays refuse it: %v\n%s", err, b)
			}
		}
		vs, _ := lab.Configs()
		seen := map[string]bool{}
		for _, v := range vs {
			for _, n := range v.Nodes {
				if seen[n.Name] {
					t.Errorf("node %q twice", n.Name)
				}
				seen[n.Name] = true
			}
			if err := v.Config.Check(); err != nil {
				t.Errorf("taken, but a vCenter refuses it: %v\n%s", err, b)
			}
		}
	})
}

func TestPages(t *testing.T) {
	schema, err := os.ReadFile("../../docs/lab.schema.json")
	if err != nil || string(schema) != string(labfile.Schema()) {
		t.Errorf("docs/lab.schema.json is not what `csilab lab schema` prints (%v)", err)
	}
	if !json.Valid(labfile.Schema()) {
		t.Error("the schema is no JSON")
	}
	page, err := os.ReadFile("../../docs/lab-yaml.md")
	if err != nil || !strings.Contains(string(page), labfile.Markdown()) {
		t.Errorf("docs/lab-yaml.md does not hold what `csilab lab schema -o markdown` prints (%v)", err)
	}
	for _, name := range []string{"labs/two-vcenters.yaml", "labs/two-arrays.yaml"} {
		if example, err := fixtures.Labs.ReadFile(name); err != nil || !strings.Contains(string(page), string(example)) {
			t.Errorf("docs/lab-yaml.md does not hold the example %s (%v)", name, err)
		}
	}
}
