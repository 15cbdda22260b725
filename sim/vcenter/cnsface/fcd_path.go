package cnsface

import (
	"net/url"
	"slices"
	"strings"

	"github.com/vmware/govmomi/simulator"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// diskPathOfURL makes the datastore path of a URL such as
// https://vc/folder/dir/a.vmdk?dcPath=DC0&dsName=ds. Errors: InvalidArgument
// (path).
func (i *inventory) diskPathOfURL(c *simulator.Context, s string) (datastore, diskPath string, err error) {
	bad := func(reason string) error {
		return &cns.Error{Kind: cns.InvalidArgument, Field: "path", Value: s, Reason: reason}
	}
	u, perr := url.Parse(s)
	if perr == nil && u.Scheme == "ds" { // as a datastore's own URL has it
		for _, ds := range i.list() {
			home, name := "", ""
			c.WithLock(ds, func() { home, name = ds.Summary.Url, ds.Name })
			if rel, ok := strings.CutPrefix(s, strings.TrimSuffix(home, "/")+"/"); ok && home != "" {
				return ds.Self.Value, "[" + name + "] " + rel, nil
			}
		}
		return "", "", bad("no datastore has this URL")
	}
	if perr != nil || u.Scheme != "https" && u.Scheme != "http" {
		return "", "", bad("allowed is https://<vCenter>/folder/<path>?dcPath=<datacenter>&dsName=<datastore>")
	}
	rel, ok := strings.CutPrefix(u.Path, "/folder/")
	if !ok || rel == "" {
		return "", "", bad("the path must begin with /folder/")
	}
	q := u.Query()
	id, ok := i.datastoreNamed(c, q.Get("dcPath"), q.Get("dsName"))
	if !ok {
		return "", "", bad("no datastore dsName in datacenter dcPath")
	}
	return id, "[" + q.Get("dsName") + "] " + rel, nil
}

// datastoreNamed finds a datastore by its name in a datacenter, which goes by
// its inventory path.
func (i *inventory) datastoreNamed(c *simulator.Context, dcPath, name string) (id string, ok bool) {
	i.mu.Lock()
	refs := slices.Clone(i.datastores)
	i.mu.Unlock()
	for _, ref := range refs {
		ds, there := i.vim.Get(ref).(*simulator.Datastore)
		if !there || ds.Name != name {
			continue
		}
		if dc := i.datacenterOf(ds); dcPath == "" || strings.Trim(dcPath, "/") == dc {
			return ref.Value, true
		}
	}
	return "", false
}

// datacenterOf is the inventory path of a datastore's datacenter, without the
// leading slash. Where entities hang never changes once they are there.
func (i *inventory) datacenterOf(ds *simulator.Datastore) string {
	for up := ds.Parent; up != nil; {
		switch o := i.vim.Get(*up).(type) {
		case *simulator.Datacenter:
			return i.pathOf(o)
		case *simulator.Folder:
			up = o.Parent
		case *simulator.StoragePod:
			up = o.Parent
		default:
			return ""
		}
	}
	return ""
}

// pathOf is the inventory path of a datacenter, without the leading slash.
func (i *inventory) pathOf(dc *simulator.Datacenter) string {
	names := dc.Name
	for up := dc.Parent; up != nil; {
		o, ok := i.vim.Get(*up).(*simulator.Folder)
		if !ok || o.Parent == nil { // the root folder has no name in paths
			break
		}
		names, up = o.Name+"/"+names, o.Parent
	}
	return names
}

// splitPath takes the name of the datastore out of a path such as
// "[ds] dir/a.vmdk". Errors: InvalidPath.
func splitPath(s string) (datastore, rel string, err error) {
	if ds, rest, ok := strings.Cut(strings.TrimPrefix(s, "["), "]"); ok && strings.HasPrefix(s, "[") && ds != "" {
		return ds, strings.TrimPrefix(rest, " "), nil
	}
	return "", "", &cns.Error{Kind: cns.InvalidPath, Field: "name", Value: s, Reason: "allowed is [datastore] and a path"}
}

// DatastoreAt is the managed object id of the datastore that a URL or a path
// such as "[ds] dir/a.vmdk" is on; "" where there is none.
func (f *Face) DatastoreAt(path string) string {
	c := f.inv.context()
	if strings.Contains(path, "://") {
		id, _, _ := f.inv.diskPathOfURL(c, path)
		return id
	}
	name, _, err := splitPath(path)
	if err != nil {
		return ""
	}
	id, _ := f.inv.datastoreNamed(c, "", name)
	return id
}
