// Package identity is the CSI Identity service.
package identity

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Config of the service.
type Config struct {
	Name    string // of the driver; required
	Version string // required
	// Groups: the plugin has the GroupController service.
	Groups bool
	// Probe says what keeps the plugin from being ready; nil: it always is.
	Probe func(ctx context.Context) error
	Log   *slog.Logger // nil discards
}

// Service implements csi.IdentityServer.
type Service struct {
	csi.UnimplementedIdentityServer
	cfg Config
}

// CSI spec, GetPluginInfoResponse.name: 63 characters at most, of a domain name.
var nameRE = regexp.MustCompile(`^[a-zA-Z]([a-zA-Z0-9.-]{0,61}[a-zA-Z0-9])?$`)

// New checks the configuration.
func New(cfg Config) (*Service, error) {
	if !nameRE.MatchString(cfg.Name) {
		return nil, fmt.Errorf("identity: Config.Name is %q, must be a domain name of 1 to 63 characters", cfg.Name)
	}
	if cfg.Version == "" {
		return nil, errors.New("identity: Config.Version is empty")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Service{cfg: cfg}, nil
}

// GetPluginInfo implements csi.IdentityServer.
func (s *Service) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: s.cfg.Name, VendorVersion: s.cfg.Version}, nil
}

// GetPluginCapabilities implements csi.IdentityServer. They are of the plugin as
// a whole, so that the node's socket names the controller service too.
func (s *Service) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	service := func(t csi.PluginCapability_Service_Type) *csi.PluginCapability {
		return &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: t}}}
	}
	caps := []*csi.PluginCapability{
		service(csi.PluginCapability_Service_CONTROLLER_SERVICE),
		service(csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS),
		{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE}}},
	}
	if s.cfg.Groups {
		caps = append(caps, service(csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE))
	}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: caps}, nil
}

// Probe implements csi.IdentityServer. A plugin that isn't ready yet answers so;
// an error would mean that it is broken (CSI spec, Probe).
func (s *Service) Probe(ctx context.Context, _ *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	ready := true
	if s.cfg.Probe != nil {
		if err := s.cfg.Probe(ctx); err != nil {
			s.cfg.Log.Warn("not ready", "err", err)
			ready = false
		}
	}
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(ready)}, nil
}
