package vcenter

import (
	"fmt"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/simulator/esx"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"
)

// addHosts adds ESXi hosts to a cluster. vcsim makes each a copy of its model's
// configuration, through XML, in which the certificate alone has an element per
// byte: that would be half of the time that a vCenter takes to start. So it
// copies a model without what weighs most and is never written to, and that is
// given to the host afterwards.
func (v *VCenter) addHosts(c *simulator.ClusterComputeResource, hosts []string) (out []*simulator.HostSystem, err error) {
	light := *esx.HostSystem.Config
	light.Certificate, light.Firewall, light.Service = nil, nil, nil
	model := &simulator.HostSystem{HostSystem: esx.HostSystem}
	model.Self, model.Name, model.Config, model.Network = ref{Type: "HostSystem", Value: "csilab-model"}, "csilab-model", &light, c.Network[:1]
	v.vim.Put(model)
	c.Host = append([]ref{model.Self}, c.Host...)
	for _, name := range hosts {
		// UserName names the host to copy.
		spec := types.HostConnectSpec{HostName: name, UserName: model.Name}
		task := c.AddHostTask(v.internal(), &types.AddHost_Task{This: c.Self, AsConnected: true, Spec: spec})
		info, err := v.finished(task.(*methods.AddHost_TaskBody).Res.Returnval)
		if err != nil {
			return nil, fmt.Errorf("vcenter: host %s: %w", name, err)
		}
		h := v.vim.Get(info.Result.(ref)).(*simulator.HostSystem)
		h.Config.Firewall, h.Config.Service = esx.HostSystem.Config.Firewall, esx.HostSystem.Config.Service
		certificates := v.vim.Get(*h.ConfigManager.CertificateManager).(*simulator.HostCertificateManager)
		body := certificates.InstallServerCertificate(v.internal(), &types.InstallServerCertificate{Cert: string(esx.HostSystem.Config.Certificate)})
		if f := body.Fault(); f != nil {
			return nil, fmt.Errorf("vcenter: certificate of host %s: %s", name, f.String)
		}
		out = append(out, h)
	}
	c.Host = c.Host[1:]
	v.vim.Remove(v.internal(), model.Self)
	return out, nil
}
