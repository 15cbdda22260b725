// Package node is the CSI Node service, for every storage backend: it finds the
// device of a volume, makes a filesystem on it where it is blank, mounts,
// publishes, grows and measures it.
//
// It keeps no state files (a backend may have to, for what it must let go of
// after the last trace of a volume has left the mount table). What is true is
// read from the mount table and from the device each time, and each call orders its steps so that a crash after
// any of them leaves something that the same call, repeated, completes and the
// reverse call undoes.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Config of the service.
type Config struct {
	Host    Host    // required
	Backend Backend // required
	// MaxVolumes that the node takes; 0 lets the orchestrator decide.
	MaxVolumes int64
	// Topology tells the segments of this node; nil, or a nil map, when the node
	// has none.
	Topology func(ctx context.Context) (map[string]string, error)
	// FormatDir keeps notes of mkfs runs over restarts of the service, so that one
	// that was killed half way is repeated; "": a device that it leaves is refused.
	FormatDir string
	Log       *slog.Logger // nil discards
}

// Service implements csi.NodeServer.
type Service struct {
	csi.UnimplementedNodeServer
	cfg      Config
	host     Host
	traits   Traits
	log      *slog.Logger
	inflight inflight
	known    known
	intents  intents
}

// New checks the configuration.
func New(cfg Config) (*Service, error) {
	if cfg.Host == nil {
		return nil, errors.New("node: Config.Host is nil")
	}
	if cfg.Backend == nil {
		return nil, errors.New("node: Config.Backend is nil")
	}
	if cfg.MaxVolumes < 0 {
		return nil, fmt.Errorf("node: Config.MaxVolumes is %d, must not be negative", cfg.MaxVolumes)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Service{cfg: cfg, host: cfg.Host, traits: cfg.Backend.Traits(), log: cfg.Log, intents: intents{cfg.Host, cfg.FormatDir}}, nil
}

// NodeGetCapabilities implements csi.NodeServer.
func (s *Service) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	var caps []*csi.NodeServiceCapability
	for _, t := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		caps = append(caps, &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}}})
	}
	return &csi.NodeGetCapabilitiesResponse{Capabilities: caps}, nil
}

// NodeGetInfo implements csi.NodeServer. The topology is nil, not empty, where
// the node has none: callers feed it back as a requirement.
func (s *Service) NodeGetInfo(ctx context.Context, _ *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	id, err := s.cfg.Backend.NodeID(ctx)
	if err != nil {
		return nil, fail(ctx, codes.Unavailable, "node id: %w", err)
	}
	if id == "" {
		return nil, status.Error(codes.Internal, "node id: empty")
	}
	resp := &csi.NodeGetInfoResponse{NodeId: id, MaxVolumesPerNode: s.cfg.MaxVolumes}
	if s.cfg.Topology != nil {
		segments, err := s.cfg.Topology(ctx)
		if err != nil {
			return nil, fail(ctx, codes.Unavailable, "topology: %w", err)
		}
		if len(segments) > 0 {
			resp.AccessibleTopology = &csi.Topology{Segments: segments}
		}
	}
	return resp, nil
}

// fail makes a status of an error. What the caller's context ended keeps the
// context's code, since orchestrators take it for "may still be under way".
func fail(ctx context.Context, code codes.Code, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	switch {
	case errors.Is(err, ErrContext):
		code = codes.InvalidArgument
	case errors.Is(err, ErrNoDevice):
		code = codes.Unavailable
	case errors.Is(err, ErrLogin):
		code = codes.Unauthenticated
	case errors.Is(err, ErrInUse):
		code = codes.FailedPrecondition
	case ctx.Err() != nil && errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		code = codes.Canceled
	}
	return status.Error(code, err.Error())
}
