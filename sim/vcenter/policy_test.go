package vcenter_test

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vmware/govmomi/pbm"
	"github.com/vmware/govmomi/pbm/methods"
	pbmtypes "github.com/vmware/govmomi/pbm/types"
	"go.uber.org/goleak"
	"gopkg.in/ini.v1"

	"github.com/csilab/csilab/sim/vcenter"
)

func check(ctx context.Context, c *pbm.Client, hubs []pbmtypes.PbmPlacementHub, id pbmtypes.PbmProfileId) (pbm.PlacementCompatibilityResult, error) {
	res, err := methods.PbmCheckCompatibility(ctx, c, &pbmtypes.PbmCheckCompatibility{This: c.ServiceContent.PlacementSolver, HubsToSearch: hubs, Profile: id})
	if err != nil {
		return nil, err
	}
	return res.Returnval, nil
}

func TestPolicies(t *testing.T) {
	v := start(t, vcenter.Config{Datastores: []vcenter.Datastore{{Name: "vmfs"}, {Name: "vsan", Type: "vsan"}, {Name: "nfs", Type: "NFS"}}})
	ctx := t.Context()
	c := login(t, v)
	pc, err := pbm.NewClient(ctx, c.Client)
	if err != nil {
		t.Fatal(err)
	}
	hubs := map[string]pbmtypes.PbmPlacementHub{}
	names := map[string]string{}
	all, err := check(ctx, pc, nil, pbmtypes.PbmProfileId{UniqueId: "aa6d5a82-1c88-45da-85d3-3d74b91a5bad"})
	if err != nil || len(all) != 3 {
		t.Fatalf("%v, %v", all, err)
	}
	for i, r := range all { // in the order of the configuration
		hubs[v.DatastoreNames()[i]] = r.Hub
		names[r.Hub.HubId] = v.DatastoreNames()[i]
	}
	compatible := func(policy string, hs ...string) string {
		t.Helper()
		id, err := pc.ProfileIDByName(ctx, policy)
		if err != nil {
			t.Fatal(err)
		}
		var hubList []pbmtypes.PbmPlacementHub
		for _, h := range hs {
			hubList = append(hubList, hubs[h])
		}
		res, err := check(ctx, pc, hubList, pbmtypes.PbmProfileId{UniqueId: id})
		if err != nil {
			t.Fatal(err)
		}
		if len(hs) > 0 && len(res) != len(hs) {
			t.Errorf("%d hubs asked for, %d answered", len(hs), len(res))
		}
		var out []string
		for _, d := range res.CompatibleDatastores() {
			out = append(out, names[d.HubId])
		}
		return strings.Join(out, " ")
	}
	for _, c := range []struct {
		policy string
		hubs   []string
		want   string
	}{
		{"vSAN Default Storage Policy", nil, "vsan"},
		{"vSAN Default Storage Policy", []string{"vmfs", "nfs"}, ""},
		{v.Policy(), nil, "vmfs vsan nfs"},
		{v.Policy(), []string{"nfs"}, "nfs"},
	} {
		if got := compatible(c.policy, c.hubs...); got != c.want {
			t.Errorf("%s on %v: %q, want %q", c.policy, c.hubs, got, c.want)
		}
	}
	if err := v.DatastoreMaintenance("vmfs", true); err != nil {
		t.Fatal(err)
	}
	if got := compatible(v.Policy()); got != "vsan nfs" {
		t.Errorf("in maintenance: %q", got)
	}
	if err := v.DatastoreMaintenance("floppy", true); err == nil {
		t.Error("maintenance of a datastore that does not exist")
	}
	if _, err := pc.ProfileIDByName(ctx, "no such policy"); err == nil {
		t.Error("a policy that does not exist")
	}
	if _, err := check(ctx, pc, nil, pbmtypes.PbmProfileId{UniqueId: "nope"}); err == nil {
		t.Error("an id that does not exist")
	}
}

func TestConfAndEnv(t *testing.T) {
	v := start(t, vcenter.Config{TLS: true, User: "k8s user@vsphere.local", Password: `p"a\s s/w@rd#;`, Nodes: []vcenter.Node{{Name: "a", Zone: "z", Region: "r"}}})
	f, err := ini.LoadSources(ini.LoadOptions{UnescapeValueDoubleQuotes: true, PreserveSurroundedQuote: false}, []byte(v.Conf("cluster-1")))
	if err != nil {
		t.Fatal(err)
	}
	vc := f.Section(`VirtualCenter "127.0.0.1"`)
	if got := vc.Key("port").String(); got != v.URL().Port() {
		t.Errorf("port %q", got)
	}
	if got := vc.Key("user").String(); got != "k8s user@vsphere.local" {
		t.Errorf("user %q", got)
	}
	if got := f.Section("Global").Key("cluster-id").String(); got != "cluster-1" {
		t.Errorf("cluster-id %q", got)
	}
	if got := f.Section("Labels").Key("topology-categories").String(); got != "k8s-region, k8s-zone" {
		t.Errorf("categories %q", got)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "env")
	if err := v.WriteEnv(path, "cluster-1"); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	for _, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		k, val, ok := strings.Cut(line, "=")
		if !ok {
			t.Errorf("line %q", line)
		}
		env[k] = val
	}
	u, err := url.Parse(env["CSILAB_VCENTER_URL"])
	if err != nil || u.User.String() != v.URL().User.String() || u.Host != v.URL().Host || u.Path != "/sdk" || u.Scheme != "https" {
		t.Errorf("url %q, %v", env["CSILAB_VCENTER_URL"], err)
	}
	if env["CSILAB_DATASTORE"] != "datastore-1" || env["CSILAB_DATASTORE2"] != "datastore-2" || env["CSILAB_RESOURCE_POOL"] != "/DC0/host/DC0_C0/Resources" || env["CSILAB_DATACENTER"] != "/DC0" {
		t.Errorf("%v", env)
	}
	fi, err := os.Stat(env["CSILAB_VSPHERE_CONF"])
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("conf %v, %v", fi, err)
	}
	if es, _ := os.ReadDir(dir); len(es) != 2 {
		t.Errorf("left in the directory: %v", es)
	}
}

func TestNothingStays(t *testing.T) {
	before := goleak.IgnoreCurrent()
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	t.Setenv("TMP", tmp)
	ctx, cancel := context.WithCancel(context.Background())
	v, err := vcenter.New(ctx, vcenter.Config{TLS: true, Nodes: []vcenter.Node{{Name: "node-1"}, {Name: "node-2"}}})
	if err != nil {
		t.Fatal(err)
	}
	c := login(t, v)
	cc, err := cnsClient(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	if err := life(ctx, v, cc); err != nil {
		t.Fatal(err)
	}
	c.CloseIdleConnections()
	cancel() // as good as Close
	v.Close()
	goleak.VerifyNone(t, before)
	if es, _ := os.ReadDir(tmp); len(es) > 0 {
		t.Errorf("left in the temporary directory: %v", es)
	}
}
