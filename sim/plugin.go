package sim

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/csilab/csilab/sim/transport"
)

// Plugin is another CSI plugin that registers with a node's kubelet, and says
// of itself what a test wants it to say.
type Plugin struct {
	Name     string
	Versions []string // that its registrar announces
	NodeID   string   // that NodeGetInfo answers
	Socket   string   // name of its sockets; "" is Name

	registration.UnimplementedRegistrationServer
	csi.UnimplementedNodeServer
	endpoint string

	mu       sync.Mutex
	statuses []*registration.RegistrationStatus
}

// ServePlugin runs a plugin on a node until stop is called; the sockets go then.
func (l *Lab) ServePlugin(node string, p *Plugin) (stop func(), err error) {
	n := l.node(node)
	if n == nil {
		return nil, fmt.Errorf("no node %q", node)
	}
	socket := cmp.Or(p.Socket, p.Name)
	dir := kubeletRoot + "/plugins/" + socket
	if err := n.host.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	p.endpoint = dir + "/csi.sock"
	driver, err := n.net.Listen("unix", p.endpoint)
	if err != nil {
		return nil, err
	}
	registrar, err := n.net.Listen("unix", kubeletRoot+"/plugins_registry/"+socket+"-reg.sock")
	if err != nil {
		driver.Close()
		return nil, err
	}
	d, r := grpc.NewServer(), grpc.NewServer()
	csi.RegisterNodeServer(d, p)
	registration.RegisterRegistrationServer(r, p)
	var wg sync.WaitGroup
	wg.Go(func() { d.Serve(driver) })
	wg.Go(func() { r.Serve(registrar) })
	return sync.OnceFunc(func() {
		r.Stop()
		d.Stop()
		wg.Wait()
	}), nil
}

// Told are the answers that kubelet has sent to the plugin so far: "" for
// registered, else its reason.
func (p *Plugin) Told() (out []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.statuses {
		text := s.GetError()
		if !s.GetPluginRegistered() && text == "" {
			text = "no reason given"
		}
		out = append(out, text)
	}
	return out
}

// GetInfo implements the registration service.
func (p *Plugin) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: p.Name, Endpoint: p.endpoint, SupportedVersions: p.Versions}, nil
}

// NotifyRegistrationStatus implements the registration service.
func (p *Plugin) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.statuses = append(p.statuses, s)
	return &registration.RegistrationStatusResponse{}, nil
}

// NodeGetInfo implements csi.NodeServer.
func (p *Plugin) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: p.NodeID}, nil
}

// NodeGetCapabilities implements csi.NodeServer.
func (p *Plugin) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

// LeaveSocket leaves a dead socket where the driver's registrar has its own on a
// node, as a node that crashes does: whoever dials it is refused. The registrar must
// be stopped.
func (l *Lab) LeaveSocket(node string) error {
	n := l.node(node)
	if n == nil {
		return fmt.Errorf("no node %q, allowed are %v", node, l.Nodes())
	}
	path := l.plugin().registration
	if m, ok := n.net.(*transport.Memory); ok {
		m.Leave(path)
		return nil
	}
	s, err := n.net.Listen("unix", path)
	if err != nil {
		return err
	}
	if u, ok := s.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	return s.Close()
}
