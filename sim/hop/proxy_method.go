package hop

import (
	"fmt"
	"strings"

	_ "github.com/container-storage-interface/spec/lib/go/csi" // registers the services that are known
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	_ "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

// frame is a message as it is on the wire.
type frame struct{ bytes []byte }

// rawCodec takes messages as they are.
type rawCodec struct{}

// Name is that of what the messages are, whoever knows them.
func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*frame)
	if !ok {
		return nil, fmt.Errorf("proxy: message is a %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(f.bytes)}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return fmt.Errorf("proxy: message is a %T", v)
	}
	f.bytes = data.Materialize()
	return nil
}

// rpc is what a proxy knows of a method.
type rpc struct {
	hop   ledger.Hop
	op    string
	path  string               // /service/method
	unary bool                 // surely
	input protoreflect.Message // nil: unknown
}

// The services whose operations have names of their own in the ledger.
const (
	csiPackage          = "csi.v1."
	registrationService = "pluginregistration.Registration"
)

// lookUp finds a method by its path, e.g. /csi.v1.Controller/CreateVolume.
func lookUp(path string) rpc {
	service, method, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	m := rpc{hop: ledger.CSI, op: service + "/" + method, path: path}
	switch {
	case service == registrationService:
		m.hop, m.op = ledger.Registration, method
	case strings.HasPrefix(service, csiPackage):
		m.op = method
	}
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	s, ok := d.(protoreflect.ServiceDescriptor)
	if err != nil || !ok {
		return m
	}
	md := s.Methods().ByName(protoreflect.Name(method))
	if md == nil || md.IsStreamingClient() || md.IsStreamingServer() {
		return m
	}
	if t, err := protoregistry.GlobalTypes.FindMessageByName(md.Input().FullName()); err == nil {
		m.unary, m.input = true, t.New()
	}
	return m
}

// call describes a call before any of its messages is known.
func (m rpc) call(cfg ProxyConfig) fault.Call {
	return fault.Call{Hop: m.hop, Op: m.op, Component: cfg.Component, Node: cfg.Node}
}

// describe is call with what the request tells. One that can't be read is the
// driver's to refuse.
func (m rpc) describe(cfg ProxyConfig, f *frame) fault.Call {
	c := m.call(cfg)
	req := m.input.Interface()
	if err := proto.Unmarshal(f.bytes, req); err != nil {
		return c
	}
	d := Describe(m.hop, m.path, req)
	d.Op, d.Component = c.Op, c.Component
	if d.Node == "" {
		d.Node = c.Node
	}
	return d
}
