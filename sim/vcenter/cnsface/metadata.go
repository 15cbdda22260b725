package cnsface

import (
	"context"
	"fmt"

	govcns "github.com/vmware/govmomi/cns"
	"github.com/vmware/govmomi/cns/methods"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// CnsUpdateVolumeMetadata merges metadata into volumes. It takes several, and
// each has a result of its own.
func (m *manager) CnsUpdateVolumeMetadata(ctx *simulator.Context, req *cnstypes.CnsUpdateVolumeMetadata) soap.HasFault {
	j := job{
		TaskCall: TaskCall{Op: "CnsUpdateVolumeMetadata"},
		entity:   govcns.CnsVolumeManagerInstance,
		do: func(context.Context, *simulator.Context) (vim.AnyType, error) {
			if len(req.UpdateSpecs) == 0 {
				return nil, &taskError{invalid("InputSpec")}
			}
			out := &cnstypes.CnsVolumeOperationBatchResult{}
			var refused error
			for _, s := range req.UpdateSpecs {
				r := &cnstypes.CnsVolumeOperationResult{VolumeId: s.VolumeId}
				if err := m.f.updateMetadata(s); err != nil {
					r.Fault = wire("CnsUpdateVolumeMetadata", err)
					refused = err
				}
				out.VolumeResults = append(out.VolumeResults, r)
			}
			return out, refused
		},
	}
	if len(req.UpdateSpecs) > 0 {
		j.Volume = req.UpdateSpecs[0].VolumeId.Id
	}
	j.failed = func(f *vim.LocalizedMethodFault) vim.AnyType {
		return batch(&cnstypes.CnsVolumeOperationResult{VolumeId: volumeID(j.Volume), Fault: f})
	}
	return &methods.CnsUpdateVolumeBody{Res: &cnstypes.CnsUpdateVolumeMetadataResponse{Returnval: m.f.start(ctx, j)}}
}

func (f *Face) updateMetadata(s cnstypes.CnsVolumeMetadataUpdateSpec) error {
	u := cns.MetadataUpdate{Cluster: cluster(s.Metadata.ContainerCluster)}
	for _, c := range s.Metadata.ContainerClusterArray {
		u.Clusters = append(u.Clusters, cns.ClusterUpdate{Cluster: cluster(c), Delete: c.Delete})
	}
	for _, e := range s.Metadata.EntityMetadata {
		x, gone, err := entity(e)
		if err != nil {
			return err
		}
		u.Entities = append(u.Entities, cns.EntityUpdate{Entity: x, Delete: gone})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.core.UpdateMetadata(s.VolumeId.Id, u)
	return err
}

func cluster(c cnstypes.CnsContainerCluster) cns.Cluster {
	return cns.Cluster{Type: c.ClusterType, ID: c.ClusterId, User: c.VSphereUser, Flavor: c.ClusterFlavor, Distribution: c.ClusterDistribution}
}

func clusterWire(c cns.Cluster) cnstypes.CnsContainerCluster {
	return cnstypes.CnsContainerCluster{ClusterType: c.Type, ClusterId: c.ID, VSphereUser: c.User, ClusterFlavor: c.Flavor, ClusterDistribution: c.Distribution}
}

func metadata(m cnstypes.CnsVolumeMetadata) (cns.Metadata, error) {
	out := cns.Metadata{Cluster: cluster(m.ContainerCluster)}
	for _, c := range m.ContainerClusterArray {
		out.Clusters = append(out.Clusters, cluster(c))
	}
	for _, e := range m.EntityMetadata {
		x, _, err := entity(e)
		if err != nil {
			return out, err
		}
		out.Entities = append(out.Entities, x)
	}
	return out, nil
}

func entity(e cnstypes.BaseCnsEntityMetadata) (x cns.Entity, gone bool, err error) {
	var m cnstypes.CnsEntityMetadata
	switch e := e.(type) {
	case *cnstypes.CnsKubernetesEntityMetadata:
		m = e.CnsEntityMetadata
		x.Type, x.Namespace = e.EntityType, e.Namespace
		for _, r := range e.ReferredEntity {
			x.Refs = append(x.Refs, cns.EntityKey{Type: r.EntityType, Name: r.EntityName, Namespace: r.Namespace, Cluster: r.ClusterID})
		}
	case *cnstypes.CnsEntityMetadata:
		m = *e
	default:
		return x, false, &cns.Error{Kind: cns.InvalidArgument, Field: "entityMetadata", Value: fmt.Sprintf("%T", e), Reason: "allowed is CnsKubernetesEntityMetadata"}
	}
	x.Name, x.Cluster = m.EntityName, m.ClusterID
	for _, l := range m.Labels {
		x.Labels = append(x.Labels, cns.Label{Key: l.Key, Value: l.Value})
	}
	return x, m.Delete, nil
}

func metadataWire(m cns.Metadata) cnstypes.CnsVolumeMetadata {
	out := cnstypes.CnsVolumeMetadata{ContainerCluster: clusterWire(m.Cluster)}
	for _, c := range m.Clusters {
		out.ContainerClusterArray = append(out.ContainerClusterArray, clusterWire(c))
	}
	for _, e := range m.Entities {
		base := cnstypes.CnsEntityMetadata{EntityName: e.Name, ClusterID: e.Cluster}
		for _, l := range e.Labels {
			base.Labels = append(base.Labels, vim.KeyValue{Key: l.Key, Value: l.Value})
		}
		if e.Type == "" {
			out.EntityMetadata = append(out.EntityMetadata, &base)
			continue
		}
		k := &cnstypes.CnsKubernetesEntityMetadata{CnsEntityMetadata: base, EntityType: e.Type, Namespace: e.Namespace}
		for _, r := range e.Refs {
			k.ReferredEntity = append(k.ReferredEntity, cnstypes.CnsKubernetesEntityReference{EntityType: r.Type, EntityName: r.Name, Namespace: r.Namespace, ClusterID: r.Cluster})
		}
		out.EntityMetadata = append(out.EntityMetadata, k)
	}
	return out
}
