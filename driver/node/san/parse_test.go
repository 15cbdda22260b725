package san

import (
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/csilab/csilab/driver/node"
)

const (
	serial  = "60002ac000000000000000050001e240"
	serial2 = "60002ac000000000000000060001e240"
	t1      = "iqn.2000-05.com.3pardata:20210002ac01e240"
	t2      = "iqn.2000-05.com.3pardata:21210002ac01e240"
)

func published() map[string]string {
	return map[string]string{
		KeySerial: serial, KeyProtocol: "iscsi", KeyLUN: "5", KeyScope: "group",
		KeyTargets: t1 + "," + t2, KeyDiscoveryIPs: "10.0.0.1,10.0.0.2",
	}
}

func TestPublishContext(t *testing.T) {
	e, err := parse(published())
	if err != nil {
		t.Fatal(err)
	}
	want := export{serial: serial, protocol: iSCSI, scope: "group", arrays: []array{{lun: 5, targets: []string{t1, t2}, ips: []string{"10.0.0.1", "10.0.0.2"}}}}
	if !reflect.DeepEqual(e, want) {
		t.Errorf("%+v", e)
	}
	if e.uuid() != "mpath-3"+serial {
		t.Error(e.uuid())
	}

	for _, c := range []struct {
		name, key, value, says string
	}{
		{"upper case serial (36)", KeySerial, strings.ToUpper(serial), ""},
		{"empty serial (36)", KeySerial, "", KeySerial},
		{"short serial", KeySerial, "60002ac0", KeySerial},
		{"serial with prefix", KeySerial, "0x" + serial, KeySerial},
		{"no protocol", KeyProtocol, "", ""},
		{"FC", KeyProtocol, "FC", ""},
		{"NVMe", KeyProtocol, "nvmetcp", KeyProtocol},
		{"LUN 0", KeyLUN, "0", ""},
		{"no LUN", KeyLUN, "", KeyLUN},
		{"no VLUN (34)", KeyLUN, "-1", KeyLUN},
		{"LUN is text (43)", KeyLUN, "five", KeyLUN},
		{"LUN too large", KeyLUN, "16384", KeyLUN},
		{"no targets", KeyTargets, " , ", KeyTargets},
		{"no addresses", KeyDiscoveryIPs, "", KeyDiscoveryIPs},
		{"volume scope", KeyScope, "volume", ""},
		{"unknown scope", KeyScope, "world", KeyScope},
		{"no peers", KeyPeers, `{"PeerArrayDetails":null}`, ""},
		{"peers", KeyPeers, `{"PeerArrayDetails":[{"lun_id":7,"target_names":["` + t2 + `"],"discovery_ips":["10.1.0.1"]}]}`, ""},
		{"peer LUN is text (43)", KeyPeers, `{"PeerArrayDetails":[{"lun_id":"7"}]}`, KeyPeers},
		{"peer without LUN", KeyPeers, `{"PeerArrayDetails":[{}]}`, "lun_id"},
		{"peer VLUN missing (34)", KeyPeers, `{"PeerArrayDetails":[{"lun_id":-1}]}`, "lun_id"},
		{"peers cut", KeyPeers, `{"PeerArrayDetails":[`, KeyPeers},
	} {
		in := published()
		in[c.key] = c.value
		_, err := parse(in)
		if c.says == "" && err != nil || c.says != "" && (!errors.Is(err, node.ErrContext) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// Each array has its own number for the volume.
func TestAcceptedLUNs(t *testing.T) {
	in := published()
	in[KeyTargets] = t1
	in[KeyPeers] = `{"PeerArrayDetails":[{"lun_id":7,"target_names":["` + t2 + `"],"discovery_ips":["10.1.0.1"]}]}`
	e, err := parse(in)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		target string
		lun    int
		want   bool
	}{{t1, 5, true}, {t1, 7, false}, {t2, 7, true}, {t2, 5, false}, {"", 5, true}, {"", 7, true}, {"iqn.other", 6, false}} {
		if got := e.accepts(c.target, c.lun); got != c.want {
			t.Errorf("LUN %d at %q: %t", c.lun, c.target, got)
		}
	}
	if got := e.luns(); !slices.Equal(got, []int{5, 7}) {
		t.Error(got)
	}
}

func TestDiscoveredTargets(t *testing.T) {
	out := "10.0.0.1:3260,21 " + t1 + "\n[2001:db8::1]:3260,22 " + strings.ToUpper(t2) + "\n" +
		"10.0.0.1:3260,21 " + t1 + "\n10.0.0.9:3260,1 iqn.2001-04.com.example:com.3pardata\n10.0.0.9:3260,1 eui.02004567A425678D\nnothing\n"
	got := portals(out)
	want := []portal{{"10.0.0.1:3260", t1}, {"[2001:db8::1]:3260", t2}}
	if !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

func FuzzPortals(f *testing.F) {
	f.Add("10.0.0.1:3260,21 " + t1 + "\n")
	f.Fuzz(func(t *testing.T, out string) {
		for _, p := range portals(out) {
			if !strings.HasPrefix(p.target, "iqn.") {
				t.Error(p)
			}
		}
	})
}

func FuzzPublishContext(f *testing.F) {
	f.Add(serial, "5", t1, `{"PeerArrayDetails":[{"lun_id":7}]}`)
	f.Fuzz(func(t *testing.T, serial, lun, targets, peers string) {
		e, err := parse(map[string]string{KeySerial: serial, KeyLUN: lun, KeyTargets: targets, KeyDiscoveryIPs: "10.0.0.1", KeyPeers: peers})
		if err != nil {
			if !errors.Is(err, node.ErrContext) {
				t.Error(err)
			}
			return
		}
		for _, l := range e.luns() {
			if l < 0 || l > maxLUN {
				t.Error(l)
			}
		}
	})
}

func TestFilesystem(t *testing.T) {
	s := newSAN(t, Config{Host: newTree(nil)})
	f, err := s.Filesystem(node.Volume{})
	if err != nil || f.Type != "xfs" || f.Owner != nil || f.Mode != nil || f.Repair || f.ReadOnly {
		t.Errorf("%+v, %v", f, err)
	}
	f, err = s.Filesystem(node.Volume{
		PublishContext: map[string]string{KeyFSType: "ext4", KeyFSOwner: "1000:2000", KeyFSMode: "02770", KeyFSCreate: " -b 2048  -T largefile", KeyReadOnly: "true"},
		Context:        map[string]string{KeyFSType: "xfs", KeyFSRepair: "true"},
	})
	if err != nil || f.Type != "ext4" || *f.Owner != (node.Owner{UID: 1000, GID: 2000}) || *f.Mode != fs.ModeSetgid|0o770 ||
		!slices.Equal(f.Create, []string{"-b", "2048", "-T", "largefile"}) || !f.Repair || !f.ReadOnly {
		t.Errorf("%+v, %v", f, err)
	}
	for k, v := range map[string]string{
		KeyFSType: "btrfs", KeyFSOwner: "root:root", KeyFSMode: "0888", KeyFSCreate: "-E $(reboot)", KeyReadOnly: "yes",
	} {
		if _, err := s.Filesystem(node.Volume{PublishContext: map[string]string{k: v}}); !errors.Is(err, node.ErrContext) || !strings.Contains(err.Error(), k) {
			t.Errorf("%s=%s: %v", k, v, err)
		}
	}
	for _, o := range []string{"1", "1:", ":1", "-1:1", "1:1:1"} {
		if _, err := s.Filesystem(node.Volume{Context: map[string]string{KeyFSOwner: o}}); !errors.Is(err, node.ErrContext) {
			t.Errorf("owner %q: %v", o, err)
		}
	}
}

func TestCHAP(t *testing.T) {
	c := &cluster{secrets: map[string]map[string]string{
		"hpe/all": {"chapUser": "all", "chapPassword": "secret-of-all"},
		"hpe/one": {"chapUser": "one", "chapPassword": "secret-of-one"},
		"hpe/bad": {"chapUser": "bad", "chapPassword": "short"},
	}}
	named := func(name string) map[string]string {
		return map[string]string{"chapSecretName": name, "chapSecretNamespace": "hpe"}
	}
	for _, x := range []struct {
		name string
		cfg  Config
		v    node.Volume
		user string
		says string
	}{
		{"none", Config{}, node.Volume{}, "", ""},
		{"of the driver", Config{Cluster: c, CHAP: SecretName{"hpe", "all"}}, node.Volume{}, "all", ""},
		{"of the class", Config{Cluster: c, CHAP: SecretName{"hpe", "all"}}, node.Volume{Context: named("one")}, "one", ""},
		{"of the call", Config{Cluster: c}, node.Volume{Context: named("one"), Secrets: map[string]string{"chapUser": "me", "chapPassword": "123456789012"}}, "me", ""},
		{"no such Secret", Config{Cluster: c}, node.Volume{Context: named("two")}, "", "hpe/two"},
		{"no cluster", Config{}, node.Volume{Context: named("one")}, "", "hpe/one"},
		{"short password", Config{Cluster: c}, node.Volume{Context: named("bad")}, "", "12 to 16"},
		{"bad user", Config{}, node.Volume{Secrets: map[string]string{"chapUser": "-x", "chapPassword": "123456789012"}}, "", "chapUser"},
	} {
		x.cfg.Host = newTree(nil)
		got, err := newSAN(t, x.cfg).chapOf(t.Context(), x.v)
		if got.user != x.user || x.says == "" && err != nil || x.says != "" && (err == nil || !strings.Contains(err.Error(), x.says)) {
			t.Errorf("%s: %v, %v", x.name, got, err)
		}
		if err != nil && strings.Contains(err.Error(), "short\"") {
			t.Errorf("%s: the password is in the error: %v", x.name, err)
		}
	}
}

// Passwords are in no error and no log.
func TestNoSecretIsTold(t *testing.T) {
	const secret = "secret-of-one"
	args := []string{"--mode", "node", "--op", "update", "-n", "node.session.auth.password", "-v", secret}
	if got := strings.Join(masked(args), " "); strings.Contains(got, secret) {
		t.Error(got)
	}
	_, err := newSAN(t, Config{Host: newTree(nil)}).run(t.Context(), "iscsiadm", args...)
	if err == nil || strings.Contains(err.Error(), secret) {
		t.Error(err)
	}
	v := node.Volume{ID: "v", Secrets: map[string]string{"password": secret}}
	for _, f := range []string{"%v", "%+v", "%#v", "%s"} {
		if got := fmt.Sprintf(f, v) + fmt.Sprintf(f, chap{"me", secret}); strings.Contains(got, secret) {
			t.Error(got)
		}
	}
}
