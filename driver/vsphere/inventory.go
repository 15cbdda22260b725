package vsphere

type datacenter struct{}
type zoneTable struct{}
