package hpe

import (
	"context"
	"maps"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/csilab/csilab/driver/controller"
	"github.com/csilab/csilab/driver/hpe/csp"
	"github.com/csilab/csilab/driver/hpe/kube"
)

// A volume whose class has accessProtocol nfs is a share of the array's file
// service, which nodes mount over NFS. Parameters, contexts and what is refused
// are upstream's (hpe-storage/csi-driver, pkg/flavor/kubernetes/file.go) and those
// that SCOD documents for the file services of B10000 and X10000.

// Parameters of shares.
const (
	// Who may mount the share. Without it those are the nodes that have it,
	// where upstream's default is everybody: a node that was taken off the volume
	// must not go on.
	paramClients = "accessControlList"
	paramDestroy = "destroyOnDelete"
)

// Limits of a list of clients. Source: SCOD, X10000, accessControlList.
const (
	maxClients     = 50
	maxClientsText = 253
)

// checkFiles checks the parameters and the use of a share, and that only a share
// is mounted by several nodes.
func checkFiles(p map[string]string, access controller.Access) error {
	files := p[paramAccessProtocol] == nfs
	if err := (controller.Volume{Files: files}).Check(access); err != nil {
		if !files {
			return controller.Errorf(controller.Invalid, "parameters: accessProtocol is %q: %w", p[paramAccessProtocol], err)
		}
		return err
	}
	if !files {
		return nil
	}
	for key, allowed := range map[string][]string{
		"shareReadOnly": {"true", "false"}, "shareSourcePorts": {"secure", "insecure"},
		"shareSquashingOption": {"no_root_squash", "root_squash", "all_squash"},
		// Upstream's false, its default, leaves the volume to an administrator; what
		// decides that here is the class's reclaimPolicy.
		paramDestroy: {"true"},
	} {
		if v, ok := p[key]; ok && !slices.Contains(allowed, v) {
			return controller.Errorf(controller.Invalid, "parameters: %s is %q, allowed with accessProtocol nfs: %s", key, v, strings.Join(allowed, ", "))
		}
	}
	for _, key := range []string{paramCloneOf, paramVirtualCopyOf, "importVolumeName", "importVolAsClone", "replicationDevices"} {
		if p[key] != "" {
			return controller.Errorf(controller.Invalid, "parameters: %s: not supported with accessProtocol nfs", key)
		}
	}
	if list := p[paramClients]; list != "" {
		return checkClients(names(list))
	}
	return nil
}

func checkClients(list []string) error {
	if text := strings.Join(list, ","); len(list) == 0 || len(list) > maxClients || len(text) > maxClientsText || strings.ContainsAny(text, " \t\n") {
		return controller.Errorf(controller.Invalid, "parameters: accessControlList has %d entries of %d bytes, allowed: 1 to %d without blanks, of %d together", len(list), len(text), maxClients, maxClientsText)
	}
	return nil
}

// checkSource refuses to make a share of a snapshot or of another volume.
func checkSource(p map[string]string, r controller.CreateVolume) error {
	if p[paramAccessProtocol] == nfs && r.Snapshot+r.Source != "" {
		return controller.Errorf(controller.Invalid, "volume_content_source: not supported with accessProtocol nfs")
	}
	return nil
}

// isFiles says whether a volume is a share.
func isFiles(v csp.Volume) bool {
	protocol, _ := v.Config["access_protocol"].(string)
	return strings.EqualFold(protocol, nfs)
}

// notFiles refuses a share where a copy is wanted. Source: SCOD, B10000 File
// Service: no snapshot and no clone.
func notFiles(v csp.Volume, field string) error {
	if isFiles(v) {
		return controller.Errorf(controller.Invalid, "%s: volume %s is a share of files, of which there are no snapshots and clones", field, v.ID)
	}
	return nil
}

// share gives a node a share: to the clients that other nodes with it are, it
// adds this one's. listed are the clients that the volume's class names.
func (b *Backend) share(ctx context.Context, s *csp.Session, v csp.Volume, r controller.Attach, node kube.NodeInfo, listed string) (map[string]string, error) {
	clients, err := b.clients(listed, node)
	if err != nil {
		return nil, err
	}
	if v.Published && r.Access.Shared && listed == "" {
		if err := b.noteUnknown(ctx, r.Volume); err != nil {
			return nil, err
		}
	}
	readOnly := r.ReadOnly || r.Access.ReadOnly
	undo, err := b.remember(ctx, r, node.UUID, noteOf(readOnly, strings.Join(clients, ",")))
	if err != nil {
		return nil, err
	}
	rec, err := b.nodesOf(ctx, r.Volume)
	if err != nil {
		return nil, err
	}
	all := allClients(rec.Params)
	if err := checkClients(all); err != nil {
		undo(&csp.Error{Status: http.StatusBadRequest}) // nothing was asked for
		return nil, controller.Errorf(controller.Exhausted, "volume %s has more nodes than the storage system takes for a share, set accessControlList in its class: %w", r.Volume, err)
	}
	p, err := s.PublishFile(ctx, r.Volume, strings.Join(all, ","))
	if err != nil {
		if csp.StatusOf(err) == http.StatusNotFound {
			undo(err)
		}
		return nil, fail(ctx, err, kinds{http.StatusNotFound: controller.NotFound}, "sharing volume %s with node %s", r.Volume, node.UUID)
	}
	if _, err := netip.ParseAddr(p.ExportIP); err != nil {
		return nil, controller.Errorf(controller.Internal, "volume %s: the provider's publication: export_ip is %.64q, must be an address", r.Volume, p.ExportIP)
	}
	if !path.IsAbs(p.MountPath) || strings.ContainsAny(p.MountPath, " \t\n,") {
		return nil, controller.Errorf(controller.Internal, "volume %s: the provider's publication: mount_path is %.64q, must be an absolute path", r.Volume, p.MountPath)
	}
	ro := "false"
	if readOnly {
		ro = "true"
	}
	return map[string]string{keyProtocol: nfs, keyExportIP: p.ExportIP, keyMountPath: p.MountPath, keyReadOnly: ro}, nil
}

// unknownNode stands in a record for nodes that had a share before the record was
// lost.
const unknownNode = "unknown"

// noteUnknown is for a share of several nodes that is published, and no record
// says for whom: who has it must keep it, so that it is for everybody until it is
// deleted.
func (b *Backend) noteUnknown(ctx context.Context, volume string) error {
	rec, err := b.nodesOf(ctx, volume)
	if err != nil || len(rec.Params) > 0 {
		return err
	}
	b.log.WarnContext(ctx, "a share is published and no record says for whom: it is for everybody from now on", "volume", volume)
	rec.Params = map[string]string{unknownNode: noteOf(false, "*")}
	return b.put(ctx, rec, volume)
}

// clients are those that a node is to a share: what the class says, else the
// node's addresses.
func (b *Backend) clients(listed string, node kube.NodeInfo) (out []string, err error) {
	if out = names(listed); len(out) > 0 {
		return out, checkClients(out)
	}
	if b.forgetful {
		// Which other nodes have it isn't known, and they must keep it.
		return []string{"*"}, nil
	}
	for _, n := range node.Networks {
		a, _, _ := strings.Cut(n, "/")
		if _, err := netip.ParseAddr(a); err == nil && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	if len(out) == 0 {
		return nil, controller.Errorf(controller.Invalid, "node %s has no address (networks %q), and the volume's class no accessControlList: nobody could mount the share", node.UUID, node.Networks)
	}
	return out, nil
}

// allClients are the clients of all nodes that a record has.
func allClients(notes map[string]string) (out []string) {
	for _, note := range notes {
		out = append(out, clientsOf(note)...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// detachFiles takes a share from nodes: it is shared with those that are left, or
// with nobody. done is false for a volume that is no share as far as is known.
func (b *Backend) detachFiles(ctx context.Context, s *csp.Session, volume string, uuids []string) (done bool, err error) {
	rec, err := b.nodesOf(ctx, volume)
	if err != nil {
		return false, err
	}
	if len(allClients(rec.Params)) == 0 {
		if !b.forgetful {
			return false, nil
		}
		// As upstream: shared with everybody until it is deleted.
		v, err := s.Volume(ctx, volume)
		return err == nil && isFiles(v), nil
	}
	var leave []string
	for _, uuid := range uuids {
		if _, ok := rec.Params[uuid]; ok {
			leave = append(leave, uuid)
			delete(rec.Params, uuid)
		}
	}
	if len(leave) == 0 {
		return true, nil
	}
	if left := allClients(rec.Params); len(left) > 0 {
		_, err = s.PublishFile(ctx, volume, strings.Join(left, ","))
	} else {
		err = s.UnpublishFile(ctx, volume)
	}
	if err != nil && csp.StatusOf(err) != http.StatusNotFound {
		return false, fail(ctx, err, nil, "unsharing volume %s from node %s", volume, strings.Join(leave, ", "))
	}
	for _, uuid := range leave {
		if err := b.forget(ctx, volume, uuid); err != nil {
			return false, err
		}
	}
	return true, nil
}

// unshare ends what is left of a share that is to be deleted: one that no node
// has any more, as far as is known.
func (b *Backend) unshare(ctx context.Context, s *csp.Session, volume string) error {
	rec, err := b.nodesOf(ctx, volume)
	if err != nil {
		return err
	}
	delete(rec.Params, unknownNode)
	if len(rec.Params) > 0 {
		return controller.Errorf(controller.InUse, "volume %s is still shared with node %s", volume, slices.Min(slices.Collect(maps.Keys(rec.Params))))
	}
	if err := s.UnpublishFile(ctx, volume); err != nil {
		return fail(ctx, err, nil, "unsharing volume %s", volume)
	}
	return nil
}
