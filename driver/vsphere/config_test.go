package vsphere

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const upstream = `
# a Secret as upstream documents it
[Global]
cluster-id = "cluster-1"
cluster-distribution = "native"
query-limit = 500
list-volume-threshold = 50

[VirtualCenter "10.1.2.3"]
insecure-flag = "true"
user = "Administrator@vsphere.local"   ; the account
password = "p\"a#s;s\\word = x"
port = "8443"
datacenters = "DC0, /folder/DC1"

[Labels]
topology-categories = "k8s-region, k8s-zone"

[TopologyCategory "k8s-zone"]
Label = "topology.example.com/zone"

[Snapshot]
global-max-snapshots-per-block-volume = 5
`

func TestParseConfig(t *testing.T) {
	got, err := ParseConfig([]byte(upstream), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := Config{ClusterID: "cluster-1", Distribution: "native", QueryLimit: 500, MaxSnapshots: 5,
		VCenter: VCenter{Host: "10.1.2.3", Port: 8443, User: "Administrator@vsphere.local", Password: `p"a#s;s\word = x`, Insecure: true,
			Datacenters: []string{"DC0", "/folder/DC1"}},
		Topology: []Category{{"k8s-region", "topology.csi.vmware.com/k8s-region"}, {"k8s-zone", "topology.example.com/zone"}}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	env := map[string]string{"VSPHERE_VCENTER": "vc.example.com", "VSPHERE_USER": "u@d", "VSPHERE_PASSWORD": "env", "VSPHERE_DATACENTER": "DC9",
		"VSPHERE_VCENTER_PORT": "444", "VSPHERE_INSECURE": "false", "GLOBAL_MAX_SNAPSHOTS_PER_BLOCK_VOLUME": "7"}
	got, err = ParseConfig([]byte(upstream), func(k string) string { return env[k] })
	if err != nil {
		t.Fatal(err)
	}
	want.MaxSnapshots = 7
	want.VCenter = VCenter{Host: "vc.example.com", Port: 444, User: "u@d", Password: "env", Datacenters: []string{"DC9"}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestParseConfigErrors(t *testing.T) {
	const vc = "[VirtualCenter \"h\"]\nuser=a@b\npassword=secret\n"
	const ok = "[Global]\ncluster-id=c\n" + vc
	if _, err := ParseConfig([]byte(ok), nil); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ file, says string }{
		{vc, "cluster-id"},
		{"[Global]\ncluster-id=c\n", "VirtualCenter"},
		{ok + "[VirtualCenter \"i\"]\nuser=a@b\n", `"i"`},
		{ok + "port=0", `port = "0"`},
		{ok + "port=many", "65535"},
		{ok + "colour=red", "colour"},
		{ok + "insecure-flag=perhaps", "perhaps"},
		{ok + "thumbprint=12:34", "12:34"},
		{ok + "[Weather]\nrain=1", "weather"},
		{ok + "[Snapshot]\nglobal-max-snapshots-per-block-volume=33", "1 to 32"},
		{ok + "[Snapshot \"x\"]\n", "takes no name"},
		{ok + "[Labels]\ntopology-categories=a,b,c,d,e,f", "up to 5"},
		{ok + "[TopologyCategory \"k8s-rack\"]\nlabel=x/y", "k8s-rack"},
		{strings.Replace(ok, "a@b", "root", 1), "name@domain"},
		{strings.Replace(ok, "password=secret\n", "", 1), "password: missing"},
		{strings.Replace(ok, "secret", `"secret`, 1), "closing quote"},
		{strings.Replace(ok, "secret", `"secr\et"`, 1), "escape"},
		{strings.Replace(ok, "cluster-id=c", "cluster-id="+strings.Repeat("c", 65), 1), "1 to 64"},
		{"key=1\n" + ok, "before the first section"},
		{ok + "[VirtualCenter]\n", "quoted name"},
		{ok + "[Global", "] is missing"},
		{ok + "a b = secret", "line 6"},
	} {
		_, err := ParseConfig([]byte(x.file), nil)
		if err == nil || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%q: error %v, want %q in it", x.file, err, x.says)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the password is in %v", err)
		}
	}
	for _, env := range []string{"VSPHERE_VCENTER_PORT", "VSPHERE_INSECURE", "GLOBAL_MAX_SNAPSHOTS_PER_BLOCK_VOLUME"} {
		_, err := ParseConfig([]byte(ok), func(k string) string {
			if k == env {
				return "nonsense"
			}
			return ""
		})
		if err == nil || !strings.Contains(err.Error(), env) || !strings.Contains(err.Error(), "nonsense") {
			t.Errorf("%s: %v", env, err)
		}
	}
	if _, err := LoadConfig(t.TempDir()+"/none", nil); err == nil {
		t.Error("no error for a missing file")
	}
}

// Whatever the file holds: an error or a configuration that passes its check,
// the same each time, and no password in an error.
func FuzzParseConfig(f *testing.F) {
	f.Add(upstream)
	f.Add("[VirtualCenter \"a]b\"] # x\nuser\npassword = \"\\n\\t\"")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseConfig([]byte(s), nil)
		again, err2 := ParseConfig([]byte(s), nil)
		if (err == nil) != (err2 == nil) || !reflect.DeepEqual(c, again) {
			t.Fatal("not the same twice")
		}
		if err == nil && c.check() != nil {
			t.Fatal(c.check())
		}
		if err != nil && !reflect.DeepEqual(c, Config{}) && c.check() == nil {
			t.Fatal("an error and a configuration")
		}
	})
}

func TestVolumeName(t *testing.T) {
	for _, name := range []string{"pvc-3c4f8f1a-4e1b-4c55-9d0c-111111111111", strings.Repeat("x", 80), "ü"} {
		if got := volumeName(name); got != name {
			t.Errorf("%q became %q", name, got)
		}
	}
	long := strings.Repeat("ü", 60)
	a, b := volumeName(long+"a"), volumeName(long+"b")
	if a == b || len(a) > maxName || len(a) < maxName-1 || !strings.HasPrefix(a, "üüü") || a != volumeName(long+"a") {
		t.Errorf("%q %q", a, b)
	}
	if strings.ContainsRune(a, '\uFFFD') {
		t.Errorf("%q was cut within a character", a)
	}
}
