package hop

import (
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/nearest"
)

func init() {
	for _, s := range []grpc.ServiceDesc{csi.Identity_ServiceDesc, csi.Controller_ServiceDesc, csi.Node_ServiceDesc, csi.GroupController_ServiceDesc, csi.SnapshotMetadata_ServiceDesc} {
		for _, m := range s.Methods {
			fault.RegisterOps(ledger.CSI, m.MethodName)
		}
	}
	fault.RegisterOps(ledger.Registration, "GetInfo", "NotifyRegistrationStatus")
	fault.RegisterErrors(fault.Protocol{
		Doc:   "a gRPC code, as Go spells it",
		Codes: codeNames,
		Make: func(_ string, s fault.ErrorSpec) (error, error) {
			if s.Status != 0 {
				return nil, fault.Wrong("status", "gRPC has none")
			}
			for c := codes.Canceled; c <= codes.Unauthenticated; c++ {
				if c.String() == s.Code {
					text := s.Message
					if text == "" {
						text = "a rule of the fault plan says so"
					}
					return status.Error(c, text), nil
				}
			}
			return nil, fault.Wrong("code", "%q is no gRPC code%s", s.Code, nearest.Name(s.Code, codeNames()))
		},
		// Those of a driver that works: it is busy, a backend is away, something
		// went wrong. NotFound or InvalidArgument would be lies.
		Typical: func(string) []string { return []string{"Unavailable", "Internal", "Aborted"} },
	}, ledger.CSI, ledger.Registration)
}

func codeNames() (out []string) {
	for c := codes.Canceled; c <= codes.Unauthenticated; c++ {
		out = append(out, c.String())
	}
	slices.Sort(out)
	return out
}
