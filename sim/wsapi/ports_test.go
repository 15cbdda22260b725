package wsapi

import (
	"testing"

	"github.com/csilab/csilab/sim/array"
)

func TestPortsOfISCSIAndNVMe(t *testing.T) {
	const nqn, hostNQN = "nqn.2020-07.com.hpe:array", "nqn.2014-08.org.nvmexpress:uuid:1"
	r := newRig(t, array.Config{Ports: []array.Port{
		{PortPos: array.PortPos{Node: 0, Slot: 2, Card: 1}, Protocol: array.ISCSI, Type: array.ISCSIPort, State: array.LinkReady,
			ISCSIName: "iqn.2000-05.com.3pardata:20210002ac000001", Address: "10.1.0.5", Netmask: "255.255.255.0", MTU: 1500, VLAN: 7},
		{PortPos: array.PortPos{Node: 1, Slot: 3, Card: 1}, Protocol: array.NVMe, Type: array.HostPort, State: array.LinkReady, Address: "10.1.0.6", NQN: nqn},
	}}, Config{})
	if got := members(r.want(200, "GET", "/ports/"+q("  type EQ 8"), "")); len(got) != 1 || got[0]["iSCSIPortInfo"].(map[string]any)["vlan"] != 1.0 {
		t.Errorf("ports are %v", got)
	}
	if got := members(r.want(200, "GET", "/ports"+q("protocol EQ 6"), "")); len(got) != 1 || got[0]["nodeWWN"] != "10.1.0.6" {
		t.Errorf("ports are %v", got)
	}
	if got := members(r.want(200, "GET", "/ports/0:2:1/iSCSIVlans/", "")); len(got) != 1 || got[0]["vlanTag"] != 7.0 || got[0]["IPAddr"] != "10.1.0.5" {
		t.Errorf("VLANs are %v", got)
	}
	r.refused(400, 21, "GET", "/ports/1:3:1/iSCSIVlans", "")
	r.want(201, "POST", "/volumes", `{"name":"v","cpg":"cpg1","sizeMiB":256,"tpvv":true}`)
	r.want(201, "POST", "/hosts", `{"name":"nqntcp-n1","NQN":"`+hostNQN+`","transportType":2}`)
	r.refused(409, 73, "POST", "/hosts", `{"name":"other","NQN":"`+hostNQN+`","transportType":2}`)
	if h := r.want(200, "GET", "/hosts/nqntcp-n1", ""); h["NVMETCPPaths"].([]any)[0].(map[string]any)["NQN"] != hostNQN {
		t.Errorf("host is %v", h)
	}
	r.want(201, "POST", "/vluns", `{"volumeName":"v","lun":1,"hostname":"nqntcp-n1"}`)
	if x := members(r.want(200, "GET", "/vluns"+q("volumeName EQ v"), "")); x[0]["Subsystem_NQN"] != nqn || x[0]["active"] != false {
		t.Errorf("vlun is %v", x)
	}
}
