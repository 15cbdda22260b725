package identity

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

func TestIdentity(t *testing.T) {
	ctx := context.Background()
	var cause error
	s, err := New(Config{Name: "csi.vsphere.vmware.com", Version: "v1", Probe: func(context.Context) error { return cause }})
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.GetPluginInfo(ctx, nil)
	if err != nil || info.GetName() != "csi.vsphere.vmware.com" || info.GetVendorVersion() != "v1" {
		t.Errorf("%v, %v", info, err)
	}
	for _, c := range []error{nil, errors.New("no vCenter")} {
		cause = c
		p, err := s.Probe(ctx, nil)
		if err != nil || p.GetReady() == nil || p.GetReady().GetValue() != (c == nil) {
			t.Errorf("cause %v: %v, %v", c, p, err)
		}
	}
	caps, err := s.GetPluginCapabilities(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range caps.GetCapabilities() {
		switch c.GetType().(type) {
		case *csi.PluginCapability_Service_:
			got = append(got, c.GetService().GetType().String())
		case *csi.PluginCapability_VolumeExpansion_:
			got = append(got, c.GetVolumeExpansion().GetType().String())
		}
	}
	if want := "CONTROLLER_SERVICE VOLUME_ACCESSIBILITY_CONSTRAINTS ONLINE"; strings.Join(got, " ") != want {
		t.Errorf("%v, want %s", got, want)
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		word string
	}{
		{Config{Version: "1"}, "Name"},
		{Config{Name: "-x", Version: "1"}, "Name"},
		{Config{Name: strings.Repeat("a", 64), Version: "1"}, "Name"},
		{Config{Name: "a.b"}, "Version"},
	} {
		if _, err := New(c.cfg); err == nil || !strings.Contains(err.Error(), c.word) {
			t.Errorf("%+v: %v", c.cfg, err)
		}
	}
}
