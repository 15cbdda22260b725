package scsi_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host/scsi"
	"github.com/csilab/csilab/sim/host/scsi/scsitest"
)

// call runs a command line; words are parted by spaces, and a word in quotes is one.
func call(s *scsi.Stack, line string) (out string, status int) {
	var args []string
	for i, part := range strings.Split(line, `"`) {
		if i%2 == 1 {
			args = append(args, part)
		} else {
			args = append(args, strings.Fields(part)...)
		}
	}
	var b bytes.Buffer
	status = s.Run(&b, &b, args[0], args[1:])
	return b.String(), status
}

// A step is a command line, and what it must say.
type step struct {
	line   string
	status int
	out    string // exact, but for what is after "…"
}

func steps(t *testing.T, s *scsi.Stack, list []step) {
	t.Helper()
	for _, c := range list {
		out, status := call(s, c.line)
		want, open := strings.CutSuffix(c.out, "…")
		if status != c.status || out != want && !(open && strings.HasPrefix(out, want)) {
			t.Errorf("%s: exit status %d, want %d; says\n%s\nwant\n%s", c.line, status, c.status, out, c.out)
		}
	}
}

// bare is a stack with one port, not logged in.
func bare(t *testing.T, p scsi.Protocol, ports int) (*scsi.Stack, *scsitest.SAN) {
	t.Helper()
	store := disk.NewMemory()
	san := scsitest.New(store, scsitest.Ports(p, ports)...)
	cfg := scsi.Config{SAN: san, FirstHost: 1, Adapters: scsi.Adapters{IQN: iqn, Networks: []string{"10.0.1.1/24"}}}
	if p == scsi.FC {
		cfg.Adapters = scsi.Adapters{WWPNs: []string{wwpn}}
	}
	s := scsi.New(cfg)
	s.Boot()
	t.Cleanup(func() {
		s.Halt()
		store.Close()
	})
	return s, san
}

func TestISCSIAdm(t *testing.T) {
	s, san := bare(t, scsi.ISCSI, 2)
	const target = "iqn.2000-05.com.3pardata:20210002ac012345"
	const where = "target: " + target + ", portal: 10.0.0.1,3260]"
	steps(t, s, []step{
		{"iscsiadm -m node", 21, "iscsiadm: No records found\n"},
		{"iscsiadm -m session", 21, "iscsiadm: No active sessions.\n"},
		{"iscsiadm -m discovery -t st -p 10.9.9.9", 4, "iscsiadm: cannot make connection to 10.9.9.9: …"},
		{"iscsiadm -m discovery -t st -p 10.0.0.1 -o new", 0, "10.0.0.1:3260,21 " + target + "\n10.0.0.2:3260,22 iqn.2000-05.com.3pardata:21210002ac012345\n"},
		{"iscsiadm -m node", 0, "10.0.0.1:3260,21 " + target + "\n10.0.0.2:3260,22 iqn.2000-05.com.3pardata:21210002ac012345\n"},
		{"iscsiadm --mode node --targetname " + target + " --portal 10.0.0.1 --op update -n node.startup -v automatic", 0, ""},
		{"iscsiadm --mode node --targetname " + target + " --portal 10.0.0.1 --op update -n node.bogus -v x", 7, "iscsiadm: Cannot modify node.bogus. …"},
		{`iscsiadm --mode node --targetname ` + target + ` --portal 10.0.0.1 --op update -n node.session.auth.username -v ""`, 0, ""},
		{"iscsiadm --mode node --targetname " + target + " --portal 10.0.0.1 --login", 0,
			"Logging in to [iface: default, " + where + "\nLogin to [iface: default, " + where + " successful.\n"},
		{"iscsiadm --mode node --targetname " + target + " --portal 10.0.0.1 --login", 15, "iscsiadm: default: 1 session requested, but 1 already present.\n…"},
		{"iscsiadm -m session", 0, "tcp: [1] 10.0.0.1:3260,21 " + target + " (non-flash)\n"},
		{"iscsiadm -m session -P 1", 0, "Target: " + target + " (non-flash)\n\tCurrent Portal: 10.0.0.1:3260,21\n…"},
		{"iscsiadm -m node -o delete -T " + target, 15, "iscsiadm: This command will remove the record …"},
		{"iscsiadm -m session -r 1 --rescan", 0, "Rescanning session [sid: 1, " + where + "\n"},
		{"iscsiadm -m session -r 7 --rescan", 2, "iscsiadm: Could not get session info for sid 7\n"},
		{"iscsiadm -m node -u -T " + target, 0, "Logging out of session [sid: 1, " + where + "\nLogout of [sid: 1, " + where + " successful.\n"},
		{"iscsiadm -m node -u -T " + target, 21, "iscsiadm: No matching sessions found\n"},
		{"iscsiadm -m node -o delete -T " + target, 0, ""},
		{"iscsiadm -m node -T " + target + " --login", 21, "iscsiadm: No records found\n"},
		{"iscsiadm -m node -o new -T " + target + " -p 10.0.0.1:3260", 0, "New iSCSI node [tcp:[hw=,ip=,net_if=,iscsi_if=default] 10.0.0.1,3260,21 " + target + "] added\n"},
		// What it doesn't know it refuses.
		{"iscsiadm --bogus", 7, "iscsiadm: unrecognized option '--bogus'\n"},
		{"iscsiadm -m fw", 7, "iscsiadm: mode 'fw' is not supported\n"},
		{"iscsiadm -m node -I iface1 --login", 7, "iscsiadm: Could not read iface iface1 (6).\n"},
		{"iscsiadm -m session --loginall all", 7, "iscsiadm: session mode: option '--loginall' is not supported\n"},
	})
	// CHAP.
	san.RequireCHAP(iqn, scsi.CHAP{User: "user", Secret: "secretsecret"})
	steps(t, s, []step{
		{"iscsiadm -m node -T " + target + " -l", 24, "Logging in to [iface: default, " + where + "\niscsiadm: Could not login to [iface: default, " + where + ".\niscsiadm: initiator reported error (24 - iSCSI login failed due to authorization failure)\niscsiadm: Could not log into all portals\n"},
		{"iscsiadm -m node -T " + target + " -o update -n node.session.auth.username -v user", 0, ""},
		{"iscsiadm -m node -T " + target + " -o update -n node.session.auth.password -v secretsecret", 0, ""},
		{"iscsiadm -m node -T " + target + " -l", 0, "Logging in to …"},
	})
	// A path that is down.
	san.Down("", scsitest.Ports(scsi.ISCSI, 2)[1], true)
	steps(t, s, []step{
		{"iscsiadm -m node -p 10.0.0.2 -l", 8, "Logging in to [iface: default, target: iqn.2000-05.com.3pardata:21210002ac012345, portal: 10.0.0.2,3260]\niscsiadm: Could not login to …"},
	})
}

func TestMultipathCommands(t *testing.T) {
	s, san := bare(t, scsi.FC, 2)
	must(t, san.Volume("v", 1<<30))
	wwn := scsitest.WWN("v")
	steps(t, s, []step{
		{"dmsetup ls", 0, "No devices found\n"},
		{"dmsetup ls --target multipath", 0, ""},
		{`multipathd show paths format "%w %d"`, 0, ""},
		{"multipath -ll", 0, ""},
		{"multipathd resize map mpatha", 1, "fail\n"},
		{"dmsetup info mpatha", 1, "Device mpatha not found\nCommand failed.\n"},
	})
	must(t, san.Export("v", wwpn, 1))
	steps(t, s, []step{{"rescan-scsi-bus.sh", 0, "Scanning SCSI subsystem for new devices\n Scanning host 1 for all SCSI target IDs, all LUNs\n Scanning host 1 for all SCSI target IDs, all LUNs\n2 new or changed device(s) found.\n\t[1:0:0:1]\n\t[1:0:1:1]\n0 remapped or resized device(s) found.\n0 device(s) removed.\n"}})
	san.Standby(scsitest.Ports(scsi.FC, 2)[1], true)
	steps(t, s, []step{
		{"multipath -ll", 0, "mpatha (3" + wwn + ") dm-0 3PARdata,VV\nsize=1.0G features='1 queue_if_no_path' hwhandler='1 alua' wp=rw\n|-+- policy='service-time 0' prio=50 status=active\n| `- 1:0:0:1 sdb 8:16 active ready running\n`-+- policy='service-time 0' prio=1 status=enabled\n  `- 1:0:1:1 sdc 8:32 active ghost running\n"},
		{"multipath -v1 -l", 0, "mpatha\n"},
		{"multipath -c /dev/sdb", 0, "/dev/sdb is a valid multipath device path\n"},
		{"multipath -c /dev/sda", 1, "/dev/sda is not a valid multipath device path\n"},
		{"dmsetup ls", 0, "mpatha\t(253, 0)\n"},
		{"dmsetup table mpatha", 0, "0 2097152 multipath 1 queue_if_no_path 1 alua 2 1 service-time 0 1 1 8:16 1 service-time 0 1 1 8:32 1\n"},
		{"dmsetup table", 0, "mpatha: 0 2097152 multipath …"},
		{"dmsetup deps -o devname mpatha", 0, "2 dependencies\t: (sdc) (sdb)\n"},
		{"dmsetup info -c --noheadings -o name,uuid", 0, "mpatha:mpath-3" + wwn + "\n"},
		{"dmsetup status mpatha", 0, "0 2097152 multipath 2 0 0 0 2 1 A 0 1 0 8:16 A 0 E 0 1 0 8:32 A 0\n"},
		{"dmsetup bogus", 1, "Unknown command bogus.\nCommand failed.\n"},
		{"dmsetup remove --bogus mpatha", 1, "dmsetup: unrecognized option '--bogus'\nCommand failed.\n"},
		{"dmsetup ls --force", 1, "dmsetup: ls: option --force is not supported\nCommand failed.\n"},
		{"dmsetup message mpatha 0 bogus", 1, "device-mapper: message ioctl on mpatha failed: Invalid argument\nCommand failed.\n"},
		{`multipathd show paths format "%i %d %T %r %P"`, 0, "hcil    dev chk_st target WWPN        protocol\n1:0:0:1 sdb ready  0x20210002ac012345 scsi:fcp\n1:0:1:1 sdc ghost  0x21210002ac012345 scsi:fcp\n"},
		{`multipathd show maps raw format "%n %w %N"`, 0, "mpatha 3" + wwn + " 2\n"},
		{`multipathd "-kshow maps"`, 0, "name   sysfs uuid\nmpatha dm-0  3" + wwn + "\n"},
		{"multipathd bogus", 1, "multipathd: command 'bogus' is not supported\n"},
		{"multipathd disablequeueing map mpatha", 0, "ok\n"},
		{"multipath -ll mpatha", 0, "mpatha (3" + wwn + ") dm-0 3PARdata,VV\nsize=1.0G features='0' …"},
		{"multipathd del map mpatha", 0, "ok\n"},
		{`multipathd show paths raw format "%d %t %m"`, 0, "sdb undef [orphan]\nsdc undef [orphan]\n"},
		{"multipathd reconfigure", 0, "ok\n"},
		{`multipathd show paths raw format "%d %t %m"`, 0, "sdb active mpatha\nsdc active mpatha\n"},
		{"multipath --bogus", 1, "multipath: unrecognized option '--bogus'\n"},
		{"multipath -f mpatha", 0, ""},
		{"multipath -f mpatha", 1, "mpatha is not a multipath device\n"},
		{"multipath", 0, "create: mpatha (3" + wwn + ") dm-0 3PARdata,VV\n…"},
		{"sg_inq -p 0x83 --export /dev/sdb", 0, "SCSI_IDENT_LUN_NAA_REGEXT=" + wwn + "\n"},
		{"scsi_id --whitelisted --device=/dev/sdb", 0, "3" + wwn + "\n"},
		{"scsi_id --device=/dev/sdb", 1, ""},
		{"udevadm settle --timeout=5", 0, ""},
		{"udevadm info --query=name --root --name=/dev/mapper/mpatha", 0, "/dev/dm-0\n"},
		{"udevadm monitor", 1, "udevadm: command 'monitor' is not supported\n"},
		{"cryptsetup status -v /dev/mapper/mpatha", 1, "/dev/mapper/mpatha is inactive.\n"},
		{"cryptsetup open /dev/mapper/mpatha x", 1, "cryptsetup: 'open /dev/mapper/mpatha x' is not supported\n"},
		{"bogus", 127, "bogus: command not found\n"},
	})
	must(t, san.Grow("v", 2<<30))
	steps(t, s, []step{
		{"rescan-scsi-bus.sh -s -m", 0, "Searching for resized LUNs\n0 new or changed device(s) found.\n2 remapped or resized device(s) found.\n\t[1:0:0:1]\n\t[1:0:1:1]\n0 device(s) removed.\n"},
		{"lsblk -nbo SIZE /dev/mapper/mpatha", 0, "2147483648\n"},
	})
	san.Unexport(wwpn, 1)
	steps(t, s, []step{
		{`multipathd show paths raw format "%t %T %o"`, 0, "failed faulty running\nfailed faulty running\n"},
		{"sg_inq /dev/sdb", 0, "standard INQUIRY:\n  PQual=3 …"},
		{"rescan-scsi-bus.sh -r", 0, "Scanning SCSI subsystem for new devices\n Scanning host 1 for all SCSI target IDs, all LUNs\n Scanning host 1 for all SCSI target IDs, all LUNs\n0 new or changed device(s) found.\n0 remapped or resized device(s) found.\n2 device(s) removed.\n\t[1:0:0:1]\n\t[1:0:1:1]\n"},
		{"dmsetup ls", 0, "No devices found\n"},
	})
}

// TestPathsOfAMap: which disks multipathd takes.
func TestPathsOfAMap(t *testing.T) {
	s, san := bare(t, scsi.FC, 2)
	ports := scsitest.Ports(scsi.FC, 2)
	must(t, san.Volume("v", mib))
	must(t, san.Export("v", wwpn, 1, ports[0]))
	const show = `multipathd show paths raw format "%d %m"`
	steps(t, s, []step{
		{"rescan-scsi-bus.sh", 0, "Scanning …"},
		{"dmsetup remove mpatha", 0, ""},
		{show, 0, "sdb [orphan]\n"},
	})
	// What was left over comes back with the next path of the same unit.
	must(t, san.Export("v", wwpn, 1, ports[1]))
	steps(t, s, []step{
		{"rescan-scsi-bus.sh", 0, "Scanning …"},
		{show, 0, "sdb mpatha\nsdc mpatha\n"},
	})
	// A path of another size is let go, until the map has that size and somebody says so.
	must(t, s.Delete("sdc"))
	must(t, san.Grow("v", 2*mib))
	steps(t, s, []step{
		{"rescan-scsi-bus.sh", 0, "Scanning …"},
		{show, 0, "sdb mpatha\n"},
	})
	must(t, s.Rescan("sdb"))
	steps(t, s, []step{
		{"multipathd resize map mpatha", 0, "ok\n"},
		{show, 0, "sdb mpatha\n"},
		{"multipathd add path sdc", 0, "ok\n"},
		{show, 0, "sdb mpatha\nsdc mpatha\n"},
	})
}

func TestLsblk(t *testing.T) {
	s, san := bare(t, scsi.FC, 2)
	must(t, san.Volume("v", 1536<<20))
	must(t, san.Export("v", wwpn, 1))
	call(s, "rescan-scsi-bus.sh")
	wwn := scsitest.WWN("v")
	steps(t, s, []step{
		{"lsblk", 0, "NAME     MAJ:MIN RM SIZE RO TYPE  MOUNTPOINTS\nsdb      8:16     0 1.5G  0 disk\n└─mpatha 253:0    0 1.5G  0 mpath\nsdc      8:32     0 1.5G  0 disk\n└─mpatha 253:0    0 1.5G  0 mpath\n"},
		{"lsblk -b -l -o NAME,TYPE,SIZE /dev/mapper/mpatha", 0, "NAME   TYPE        SIZE\nmpatha mpath 1610612736\n"},
		{"lsblk -nd -o WWN,HCTL /dev/sdb", 0, "0x" + wwn + " 1:0:0:1\n"},
		{"lsblk -P -o NAME,PKNAME -l", 0, "NAME=\"sdb\" PKNAME=\"\"\nNAME=\"mpatha\" PKNAME=\"sdb\"\nNAME=\"sdc\" PKNAME=\"\"\n"},
		{"lsblk -s -n -o NAME -i /dev/dm-0", 0, "mpatha\n|-sdb\n`-sdc\n"},
		{"lsblk /dev/nope", 32, "lsblk: /dev/nope: not a block device\n"},
		{"lsblk -o BOGUS", 1, "lsblk: unknown column: BOGUS\n"},
		{"lsblk --bogus", 1, "lsblk: unrecognized option '--bogus'\n"},
	})
	out, _ := call(s, "lsblk -J -b -o NAME,SIZE,RO,MOUNTPOINT")
	var got struct {
		Blockdevices []struct {
			Name     string
			Size     int64
			RO       bool
			Children []struct{ Name string }
		}
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if len(got.Blockdevices) != 2 || got.Blockdevices[1].Size != 1536<<20 || got.Blockdevices[1].Children[0].Name != "mpatha" {
		t.Errorf("%s", out)
	}
}

// FuzzCommands: no arguments make a command fall over, or succeed in what it
// doesn't know.
func FuzzCommands(f *testing.F) {
	for _, line := range []string{"iscsiadm -m node -T x -p 1:2,3 -l", "multipathd show paths format %w%", "dmsetup info -c -o name --separator", "lsblk -J -o NAME,SIZE",
		"multipath -ll mpatha", "rescan-scsi-bus.sh --luns=1,2", "sg_inq -p 0x83 /dev/sdb", "scsi_id -g -d /dev/sdb -p 0x80", "udevadm info -q all -n dm-0", "multipathd -k", "iscsiadm -m session -r sid"} {
		f.Add(line)
	}
	s, san := (*scsi.Stack)(nil), (*scsitest.SAN)(nil)
	f.Fuzz(func(t *testing.T, line string) {
		if s == nil {
			store := disk.NewMemory()
			san = scsitest.New(store, scsitest.Ports(scsi.FC, 2)...)
			_ = san.Volume("v", mib)
			_ = san.Export("v", wwpn, 1)
			s = scsi.New(scsi.Config{SAN: san, Adapters: scsi.Adapters{IQN: iqn, WWPNs: []string{wwpn}}})
			s.Boot()
		}
		if len(strings.Fields(line)) == 0 {
			return
		}
		_, status := call(s, line)
		if strings.Contains(line, "--bogus") && status == 0 && !strings.Contains(line, `"`) && !strings.Contains(line, "-- ") {
			t.Errorf("%q succeeds", line)
		}
		s.Uevents()
	})
}

func TestNoPathRetry(t *testing.T) {
	for text, want := range map[string]scsi.NoPathRetry{"queue": scsi.RetryForever, "fail": scsi.RetryNever, "1": 1, "18": 18} {
		var got scsi.NoPathRetry
		if err := got.Set(text); err != nil || got != want || got.String() != text {
			t.Errorf("%q is %d (%v, %q), want %d", text, got, err, got, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "Queue", "1s", "99999"} {
		got := scsi.NoPathRetry(7)
		if err := got.Set(text); err == nil || !strings.Contains(err.Error(), "allowed are") || got != 7 {
			t.Errorf("%q: %v, %d", text, err, got)
		}
	}
}
