package cns

import "slices"

// ClusterUpdate sets a container cluster, or takes it and all its entities away.
type ClusterUpdate struct {
	Cluster
	Delete bool
}

// EntityUpdate sets an entity, or takes it away.
type EntityUpdate struct {
	Entity
	Delete bool
}

// MetadataUpdate is merged into the metadata of a volume, entity by entity:
// what it doesn't name stays.
type MetadataUpdate struct {
	Cluster  Cluster
	Clusters []ClusterUpdate
	Entities []EntityUpdate
}

func checkCluster(c Cluster) error {
	if c.ID == "" {
		return &Error{Kind: InvalidArgument, Field: "containerCluster.clusterId", Reason: "empty"}
	}
	if c.Type != "" && c.Type != "KUBERNETES" {
		return &Error{Kind: InvalidArgument, Field: "containerCluster.clusterType", Value: c.Type, Reason: "allowed is KUBERNETES"}
	}
	return nil
}

func checkMetadata(m Metadata) error {
	if err := checkCluster(m.Cluster); err != nil {
		return err
	}
	for _, c := range m.Clusters {
		if err := checkCluster(c); err != nil {
			return err
		}
	}
	return checkEntities(len(m.Entities), func(i int) EntityKey { return m.Entities[i].EntityKey })
}

// checkEntities refuses entities without a name, or named twice.
func checkEntities(n int, key func(int) EntityKey) error {
	seen := make(map[EntityKey]bool, n)
	for i := range n {
		k := key(i)
		if k.Name == "" {
			return &Error{Kind: InvalidArgument, Field: "entityMetadata.entityName", Reason: "empty"}
		}
		if seen[k] {
			return &Error{Kind: InvalidArgument, Field: "entityMetadata", Value: k.Type + " " + k.Namespace + "/" + k.Name, Reason: "given twice"}
		}
		seen[k] = true
	}
	return nil
}

// UpdateMetadata merges an update. Taking away what isn't there passes
// (Unverified). Errors: NotFound, InvalidArgument (no cluster id, an entity
// twice).
func (c *Core) UpdateMetadata(id string, u MetadataUpdate) (Volume, error) {
	v, ok := c.managed(id)
	if !ok {
		return Volume{}, c.unknown(id)
	}
	if err := checkCluster(u.Cluster); err != nil {
		return Volume{}, err
	}
	for _, x := range u.Clusters {
		if err := checkCluster(x.Cluster); err != nil {
			return Volume{}, err
		}
	}
	entities := slices.Clone(u.Entities)
	for i := range entities {
		if entities[i].Cluster == "" {
			entities[i].Cluster = u.Cluster.ID
		}
	}
	if err := checkEntities(len(entities), func(i int) EntityKey { return entities[i].EntityKey }); err != nil {
		return Volume{}, err
	}

	for _, k := range v.Metadata.clusterIDs() {
		drop(c.byCluster, k, v)
	}
	m := v.Metadata.clone()
	m.setCluster(u.Cluster)
	for _, x := range u.Clusters {
		if x.Delete {
			m.dropCluster(x.ID)
		} else {
			m.setCluster(x.Cluster)
		}
	}
	for _, e := range entities {
		i := slices.IndexFunc(m.Entities, func(o Entity) bool { return o.EntityKey == e.EntityKey })
		switch {
		case e.Delete && i >= 0:
			m.Entities = slices.Delete(m.Entities, i, i+1)
		case e.Delete:
		case i >= 0:
			m.Entities[i] = e.Entity
		default:
			m.Entities = append(m.Entities, e.Entity)
		}
	}
	v.Metadata = m.clone() // labels and references are the core's own
	for _, k := range v.Metadata.clusterIDs() {
		add(c.byCluster, k, v)
	}
	return v.clone(), nil
}

// setCluster replaces the cluster of this id, or adds it: a volume that
// several clusters use lists them all.
func (m *Metadata) setCluster(c Cluster) {
	if m.Cluster.ID == c.ID {
		m.Cluster = c
	}
	if i := slices.IndexFunc(m.Clusters, func(o Cluster) bool { return o.ID == c.ID }); i >= 0 {
		m.Clusters[i] = c
	} else if m.Cluster.ID != c.ID {
		m.Clusters = append(m.Clusters, c)
	}
}

// dropCluster takes a cluster and its entities away. The cluster that the
// volume was made for stays on record even without entities.
func (m *Metadata) dropCluster(id string) {
	m.Clusters = slices.DeleteFunc(m.Clusters, func(c Cluster) bool { return c.ID == id })
	m.Entities = slices.DeleteFunc(m.Entities, func(e Entity) bool { return e.Cluster == id })
}
