package san

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"k8s.io/utils/exec"
)

// cluster is a Cluster in memory.
type cluster struct {
	mu      sync.Mutex
	nodes   map[string]NodeInfo
	secrets map[string]map[string]string
	puts    int
	// race is called after each write, before the writer looks again.
	race func()
}

func (c *cluster) NodeInfos(context.Context) ([]NodeInfo, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.nodes)), nil
}

func (c *cluster) PutNodeInfo(_ context.Context, n NodeInfo) error {
	c.mu.Lock()
	if c.nodes == nil {
		c.nodes = map[string]NodeInfo{}
	}
	c.nodes[n.Name] = n
	c.puts++
	race := c.race
	c.mu.Unlock()
	if race != nil {
		race()
	}
	return nil
}

func (c *cluster) DeleteNodeInfo(_ context.Context, name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.nodes, name)
	return nil
}

func (c *cluster) Secret(_ context.Context, namespace, name string) (map[string]string, error) {
	if s, ok := c.secrets[namespace+"/"+name]; ok {
		return s, nil
	}
	return nil, errors.New("not found")
}

const iqn = "iqn.1994-05.com.redhat:8f5b9b2d4c1e"

func worker() *tree {
	t := newTree(map[string]string{
		"/etc/iscsi/initiatorname.iscsi":        "# comment\nInitiatorName=" + iqn + "\n",
		"/etc/machine-id":                       "5c0f3b\n",
		"/sys/class/fc_host/host7/port_name":    "0x2100000E1E1A2B3D\n",
		"/sys/class/fc_host/host6/port_name":    "0x2100000e1e1a2b3c\n",
		"/sys/class/net/eth0/address":           "52:54:00:12:34:56\n",
		"/sys/class/net/eth0/device/vendor":     "0x1af4\n",
		"/sys/class/net/cilium_vxlan/address":   "02:00:00:00:00:01\n",
		"/sys/class/net/lo/address":             "00:00:00:00:00:00\n",
		"/sys/class/fc_host/host6/port_state":   "Online\n",
		"/sys/class/scsi_host/host6/proc_name":  "qla2xxx\n",
		"/sys/class/scsi_host/host6/scan":       "",
		"/sys/class/iscsi_session/placeholder/": "",
	})
	t.commands["ip -o addr show"] = `1: lo    inet 127.0.0.1/8 scope host lo\       valid_lft forever preferred_lft forever
2: eth0    inet 10.0.0.11/24 brd 10.0.0.255 scope global eth0\       valid_lft forever preferred_lft forever
2: eth0    inet6 fe80::5054:ff:fe12:3456/64 scope link \       valid_lft forever preferred_lft forever
`
	return t
}

// What can't be read this once is no part of a node that is written down for good:
// kubelet asks again. A command that a node does not have is none.
func TestNodeIDOfWhatCantBeRead(t *testing.T) {
	for _, what := range []string{"/etc/iscsi/initiatorname.iscsi", "/sys/class/fc_host/host7/port_name", "/etc/hpe-storage/host-uuid", "ip -o addr show"} {
		h, c := worker(), &cluster{}
		h.broken = map[string]error{what: syscall.EIO}
		if id, err := newSAN(t, Config{Host: h, Cluster: c}).NodeID(t.Context()); !errors.Is(err, syscall.EIO) || c.puts > 0 {
			t.Errorf("%s can't be read: id %q, error %v, %d writes", what, id, err, c.puts)
		}
	}
	for _, none := range []error{exec.ErrExecutableNotFound, exec.CodeExitError{Err: errors.New("not found"), Code: 127}} {
		h, c := worker(), &cluster{}
		h.broken = map[string]error{"ip -o addr show": none}
		if _, err := newSAN(t, Config{Host: h, Cluster: c}).NodeID(t.Context()); err != nil || len(c.nodes["worker-1"].Networks) > 0 {
			t.Errorf("no such command (%v): %v, %+v", none, err, c.nodes)
		}
	}
}

func TestNodeIDInACluster(t *testing.T) {
	h, c := worker(), &cluster{}
	s := newSAN(t, Config{Host: h, Cluster: c})
	id, err := s.NodeID(t.Context())
	if err != nil || !isUUID(id) {
		t.Fatal(id, err)
	}
	n := c.nodes["worker-1"]
	want := NodeInfo{Name: "worker-1", UUID: id, IQNs: []string{iqn}, Networks: []string{"10.0.0.11/24"}, WWPNs: []string{"2100000e1e1a2b3c", "2100000e1e1a2b3d"}}
	if !equal(n, want) {
		t.Errorf("HPENodeInfo is %+v, want %+v", n, want)
	}
	// The id stays: after a restart, after the card was changed, after the node's
	// files were lost, and nothing is written that is there already.
	for name, change := range map[string]func(){
		"restart":   func() {},
		"card":      func() { h.WriteFile("/sys/class/net/eth0/address", []byte("52:54:00:00:00:01"), 0) },
		"reinstall": func() { h.Remove("/etc/hpe-storage/host-uuid") },
		"crash":     func() { h.WriteFile("/etc/hpe-storage/host-uuid", nil, 0) },
	} {
		change()
		again, err := newSAN(t, Config{Host: h, Cluster: c}).NodeID(t.Context())
		if err != nil || again != id {
			t.Errorf("%s: id is %q (%v), was %q", name, again, err, id)
		}
	}
	if c.puts != 1 {
		t.Errorf("%d writes, want 1", c.puts)
	}
	// An adapter more is told.
	h.WriteFile("/sys/class/fc_host/host8/port_name", []byte("0x2100000e1e1a2b3e"), 0)
	if _, err := s.NodeID(t.Context()); err != nil || len(c.nodes["worker-1"].WWPNs) != 3 {
		t.Errorf("%v, %+v", err, c.nodes["worker-1"])
	}
}

// hpe.md, fault 32.
func TestInitiatorOfTwoNodes(t *testing.T) {
	for name, other := range map[string]NodeInfo{
		"iSCSI name":            {Name: "worker-9", UUID: "9", IQNs: []string{strings.ToUpper(iqn)}},
		"WWPN 2100000e1e1a2b3d": {Name: "worker-9", UUID: "9", WWPNs: []string{"0x2100000E1E1A2B3D"}},
	} {
		c := &cluster{nodes: map[string]NodeInfo{"worker-9": other}}
		s := newSAN(t, Config{Host: worker(), Cluster: c})
		_, err := s.NodeID(t.Context())
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "worker-9") {
			t.Fatalf("error is %v", err)
		}
		if len(c.nodes) != 1 {
			t.Errorf("the node was written: %+v", c.nodes)
		}
		// It heals without a restart.
		c.DeleteNodeInfo(t.Context(), "worker-9")
		if _, err := s.NodeID(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// Two nodes that look before either has written: not both stay.
func TestInitiatorOfTwoNodesAtOnce(t *testing.T) {
	c := &cluster{}
	s := newSAN(t, Config{Host: worker(), Cluster: c})
	c.race = func() { c.nodes["worker-9"] = NodeInfo{Name: "worker-9", UUID: "9", IQNs: []string{iqn}} }
	if _, err := s.NodeID(t.Context()); err == nil {
		t.Fatal("no error")
	}
	if _, ok := c.nodes["worker-1"]; ok {
		t.Error("the node stayed")
	}
}

// Clones of one virtual machine, names and all but the name in the cluster.
func TestClonesOfAMachine(t *testing.T) {
	a, _ := newSAN(t, Config{Host: worker(), Cluster: &cluster{}}).NodeID(t.Context())
	b, _ := newSAN(t, Config{Host: worker(), Cluster: &cluster{}, NodeName: "worker-2"}).NodeID(t.Context())
	if a == b || a == "" {
		t.Errorf("ids %q and %q", a, b)
	}
	// The file was copied too: told by the cluster.
	h, c := worker(), &cluster{}
	c.nodes = map[string]NodeInfo{"worker-2": {Name: "worker-2", UUID: a, IQNs: []string{"iqn.other"}}}
	h.WriteFile("/etc/hpe-storage/host-uuid", []byte(a), 0)
	if _, err := newSAN(t, Config{Host: h, Cluster: c}).NodeID(t.Context()); err == nil || !strings.Contains(err.Error(), a) {
		t.Errorf("error is %v", err)
	}
	if _, ok := c.nodes["worker-1"]; ok {
		t.Error("the node stayed")
	}
}

func TestNodeIDWithoutACluster(t *testing.T) {
	h := worker()
	id, err := newSAN(t, Config{Host: h}).NodeID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(id) > 256 {
		t.Errorf("%d bytes", len(id))
	}
	var n NodeInfo
	if err := json.Unmarshal([]byte(id), &n); err != nil {
		t.Fatal(err)
	}
	if n.Name != "worker-1" || !isUUID(n.UUID) || !slices.Equal(n.IQNs, []string{iqn}) || len(n.WWPNs) != 2 {
		t.Errorf("%+v", n)
	}
	// Addresses change during a node's life; its id must not.
	h.commands["ip -o addr show"] = ""
	if again, err := newSAN(t, Config{Host: h}).NodeID(t.Context()); err != nil || again != id {
		t.Errorf("id is %q (%v), was %q", again, err, id)
	}
	h.WriteFile("/etc/iscsi/initiatorname.iscsi", []byte("InitiatorName=iqn.1994-05.com.redhat:"+strings.Repeat("x", 200)), 0)
	if _, err := newSAN(t, Config{Host: h}).NodeID(t.Context()); err == nil || !strings.Contains(err.Error(), "256") {
		t.Errorf("error is %v", err)
	}
	if _, err := newSAN(t, Config{Host: newTree(nil)}).NodeID(t.Context()); err == nil || !strings.Contains(err.Error(), "no initiator") {
		t.Errorf("error is %v", err)
	}
}
