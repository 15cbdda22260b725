package hpe

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/csilab/csilab/driver/controller"
	"github.com/csilab/csilab/driver/hpe/csp"
	"github.com/csilab/csilab/driver/hpe/kube"
)

// Keys of a publish context, those of upstream's: hpe.md 4.3.
const (
	keySerial    = "serialNumber"
	keyProtocol  = "accessProtocol"
	keyTargets   = "targetNames"
	keyScope     = "targetScope"
	keyLUN       = "lunId"
	keyIPs       = "discoveryIps"
	keySecondary = "secondaryArrayDetailsKey"
	keyReadOnly  = "readOnly"
	keyPort      = "targetPort"
	keyExportIP  = "exportIP"
	keyMountPath = "mountPath"
)

// Attach implements controller.Backend.
func (b *Backend) Attach(ctx context.Context, r controller.Attach) (map[string]string, error) {
	s, err := b.session(ctx)
	if err != nil {
		return nil, err
	}
	v, err := s.Volume(ctx, r.Volume)
	if csp.StatusOf(err) == http.StatusNotFound {
		return nil, notFound(r.Volume)
	}
	if err != nil {
		return nil, fail(ctx, err, nil, "volume %s", r.Volume)
	}
	if err := settled(v); err != nil {
		return nil, err
	}
	// A caller may have lost the context, as one of a static volume has none.
	own := func(key string) string { x, _ := v.Config[key].(string); return x }
	// Volumes of earlier drivers spell it as their class did (CON-4431).
	protocol := strings.ToLower(cmp.Or(r.Context[paramAccessProtocol], own("access_protocol"), iscsi))
	if !slices.Contains(protocols, protocol) {
		return nil, controller.Errorf(controller.Invalid, "volume_context.accessProtocol is %q, allowed: %s", protocol, strings.Join(protocols, ", "))
	}
	if err := (controller.Volume{Files: protocol == nfs}).Check(r.Access); err != nil {
		return nil, err
	}
	node, err := b.node(ctx, r.Node)
	if err != nil {
		return nil, err
	}
	if protocol == nfs {
		return b.share(ctx, s, v, r, node, cmp.Or(r.Context[paramClients], own("access_control_list")))
	}
	h := csp.Host{Name: node.Name, UUID: node.UUID, IQNs: node.IQNs, Networks: node.Networks, WWPNs: node.WWPNs, NQNs: node.NQNs,
		Protocol: protocol, Domain: cmp.Or(r.Context[paramVirtualDomain], own("virtual_domain"))}
	if protocol == iscsi {
		if h.CHAPUser, h.CHAPPass, err = b.chap(ctx, r.Context); err != nil {
			return nil, err
		}
	}
	readOnly := r.ReadOnly || r.Access.ReadOnly
	if v.Published {
		if err := b.alone(ctx, s, r, node.UUID); err != nil {
			return nil, err
		}
	}
	undo, err := b.remember(ctx, r, node.UUID, noteOf(readOnly, ""))
	if err != nil {
		return nil, err
	}
	if err := s.PutHost(ctx, h); err != nil {
		undo(err)
		return nil, fail(ctx, err, kinds{http.StatusNotFound: controller.Invalid}, "node %s at the storage system", node.UUID)
	}
	p, err := s.Publish(ctx, r.Volume, node.UUID, protocol)
	if err != nil {
		if csp.StatusOf(err) == http.StatusNotFound {
			undo(err) // anything else may have made some of the exports
		}
		return nil, fail(ctx, err, kinds{http.StatusNotFound: controller.NotFound}, "publishing volume %s for node %s", r.Volume, node.UUID)
	}
	return publishContext(v, p, protocol, readOnly, r)
}

// publishContext checks what the provider said and writes it for the node. A
// reply that doesn't name the device surely is refused: the node would find
// another volume's, or none.
func publishContext(v csp.Volume, p csp.Publication, protocol string, readOnly bool, r controller.Attach) (map[string]string, error) {
	bad := func(format string, args ...any) error {
		return controller.Errorf(controller.Internal, "volume "+r.Volume+": the provider's publication: "+format, args...)
	}
	serial := strings.ToLower(strings.TrimPrefix(strings.ToLower(p.Serial), "0x"))
	if _, err := hex.DecodeString(serial); err != nil || serial == "" {
		return nil, bad("serial_number is %.64q, must be hex digits", p.Serial)
	}
	if p.Protocol != "" && p.Protocol != protocol {
		return nil, bad("access_protocol is %q, asked for was %s", p.Protocol, protocol)
	}
	if protocol != nvmeTCP {
		if err := checkLUN(p.LUN); err != nil {
			return nil, bad("%w", err)
		}
		for i, peer := range p.PeerDetails {
			if err := checkLUN(peer.LUN); err != nil {
				return nil, bad("PeerArrayDetails[%d]: %w", i, err)
			}
		}
	}
	if protocol != fc && (len(p.Targets) == 0 || len(p.IPs) == 0) && len(p.PeerDetails) == 0 {
		return nil, bad("it has %d target_names and %d discovery_ips, a node needs both", len(p.Targets), len(p.IPs))
	}
	scope, _ := v.Config["target_scope"].(string)
	out := map[string]string{
		keySerial: serial, keyProtocol: protocol, keyTargets: strings.Join(p.Targets, ","), keyIPs: strings.Join(p.IPs, ","),
		keyScope: cmp.Or(scope, r.Context[paramTargetScope], "group"), keyLUN: strconv.Itoa(p.LUN.Number), keyReadOnly: strconv.FormatBool(readOnly),
	}
	if protocol == nvmeTCP {
		out[keyPort] = "4420"
	}
	if len(p.PeerDetails) > 0 {
		peers, err := json.Marshal(struct {
			PeerArrayDetails []csp.Peer
		}{p.PeerDetails})
		if err != nil {
			return nil, bad("%w", err)
		}
		out[keySecondary] = string(peers)
	}
	if r.Access.Mount {
		out[paramFSType] = cmp.Or(r.Access.FSType, strings.ToLower(r.Context[paramFSType]), DefaultFSType)
		for _, k := range []string{paramFSOwner, paramFSMode, paramFSOptions, paramFSRepair} {
			if x := r.Context[k]; x != "" {
				out[k] = x
			}
		}
	}
	return out, nil
}

// checkLUN: -1 is how a provider says that the export wasn't made, hpe.md 4.3.
func checkLUN(l csp.LUN) error {
	switch {
	case !l.Set:
		return errors.New("lun_id is missing")
	case l.Number < 0 || l.Number > 16383:
		return errors.New("lun_id is " + strconv.Itoa(l.Number) + ", the volume may not be exported; allowed are 0 to 16383")
	}
	return nil
}

// node resolves a CSI node id.
func (b *Backend) node(ctx context.Context, id string) (kube.NodeInfo, error) {
	unknown := func(err error) error {
		return controller.Errorf(controller.NotFound, "node %q: %w", id, err)
	}
	n, whole, err := kube.ParseNodeID(id)
	switch {
	case err != nil:
		return n, unknown(err)
	case whole:
		return n, nil
	case b.cfg.Cluster == nil:
		return n, unknown(errors.New("a host uuid, and there is no cluster to look it up in"))
	}
	n, err = b.cfg.Cluster.NodeInfo(ctx, n.UUID)
	switch {
	case errors.Is(err, kube.ErrNotFound):
		return n, unknown(err)
	case err != nil:
		return n, clusterFailed(ctx, err)
	}
	return n, nil
}

var chapUser = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9\-:.]{0,63}$`)

// chap returns the CHAP login of nodes for a volume: of the Secret that its
// class names, else of the configured one, else of the request's own secrets.
// Source of the rules: SCOD, "CHAP authentication".
func (b *Backend) chap(ctx context.Context, volume map[string]string) (user, password string, err error) {
	secret, from := controller.SecretsOf(ctx), "secrets"
	name, namespace := volume[paramCHAPSecret], volume[paramCHAPNamespace]
	if name == "" {
		name, namespace = b.cfg.CHAPSecretName, b.cfg.CHAPSecretNamespace
	}
	if name != "" {
		if b.cfg.Cluster == nil {
			return "", "", controller.Errorf(controller.Invalid, "chapSecretName is %q, and there is no cluster to read it from", name)
		}
		if secret, err = b.cfg.Cluster.Secret(ctx, namespace, name); err != nil {
			if errors.Is(err, kube.ErrNotFound) {
				return "", "", controller.Errorf(controller.Invalid, "the CHAP login: %w", err)
			}
			return "", "", clusterFailed(ctx, err)
		}
		from = "Secret " + namespace + "/" + name
	}
	user, password = secret["chapUser"], secret["chapPassword"]
	switch {
	case user == "" && password == "" && name == "":
		return "", "", nil
	case !chapUser.MatchString(user):
		return "", "", controller.Errorf(controller.Invalid, "%s: chapUser is %.70q, allowed are 1 to 64 letters, digits, '-', ':' and '.', the first a letter or digit", from, user)
	case len(password) < 12 || len(password) > 16:
		return "", "", controller.Errorf(controller.Invalid, "%s: chapPassword has %d characters, allowed are 12 to 16", from, len(password))
	}
	return user, password, nil
}

// Detach implements controller.Backend. The provider is asked whatever it says
// about the volume's being published: a volume that it takes for unpublished
// may still be exported, and then the node would keep it. Nor is its success
// taken for the end: one that looked for the node's exports under another name
// than they have reports success and leaves them (hpe-storage/csi-driver#518).
func (b *Backend) Detach(ctx context.Context, volume, node string) error {
	s, err := b.session(ctx)
	if err != nil {
		return err
	}
	uuids, err := b.hostsOf(ctx, volume, node)
	if err != nil {
		return err
	}
	if len(uuids) == 0 {
		return nil
	}
	if done, err := b.detachFiles(ctx, s, volume, uuids); done || err != nil {
		return err
	}
	for _, uuid := range uuids {
		if err := s.Unpublish(ctx, volume, uuid); err != nil {
			return fail(ctx, err, nil, "unpublishing volume %s from node %s", volume, uuid)
		}
	}
	v, left, err := b.leaves(ctx, s, volume, uuids)
	if err == nil && left && node != "" {
		// Told who the node is, a provider knows its host by the initiators.
		if err := b.introduce(ctx, s, v, node); err != nil {
			b.log.WarnContext(ctx, "the provider can't be told of a node", "node", node, "err", err)
		} else if err := s.Unpublish(ctx, volume, uuids[0]); err != nil {
			return fail(ctx, err, nil, "unpublishing volume %s from node %s", volume, uuids[0])
		}
		_, left, err = b.leaves(ctx, s, volume, uuids)
	}
	switch {
	case err != nil:
		return err
	case left:
		return controller.Errorf(controller.Unavailable, "volume %s: the provider has unpublished it from node %s, and says that it is still published: an export is left at the storage system", volume, strings.Join(uuids, ", "))
	}
	for _, uuid := range uuids {
		if err := b.forget(ctx, volume, uuid); err != nil {
			return err
		}
	}
	return nil
}

// leaves says whether a volume that this driver has published to a node is still
// published after it was unpublished from it, and nobody else may have it.
func (b *Backend) leaves(ctx context.Context, s *csp.Session, volume string, from []string) (v csp.Volume, left bool, err error) {
	rec, err := b.nodesOf(ctx, volume)
	if err != nil {
		return v, false, err
	}
	had := false
	for uuid := range rec.Params {
		if !slices.Contains(from, uuid) {
			return v, false, nil
		}
		had = true
	}
	if !had {
		return v, false, nil // whose the export is isn't known here
	}
	v, err = s.Volume(ctx, volume)
	switch {
	case csp.StatusOf(err) == http.StatusNotFound:
		return v, false, nil
	case err != nil:
		return v, false, fail(ctx, err, nil, "volume %s after it was unpublished", volume)
	}
	return v, v.Published && fmt.Sprint(v.Config["multi_initiator"]) != "true", nil
}

// introduce tells the provider of a node, as before a publish.
func (b *Backend) introduce(ctx context.Context, s *csp.Session, v csp.Volume, id string) error {
	n, err := b.node(ctx, id)
	if err != nil {
		return err
	}
	own := func(key string) string { x, _ := v.Config[key].(string); return x }
	return s.PutHost(ctx, csp.Host{Name: n.Name, UUID: n.UUID, IQNs: n.IQNs, Networks: n.Networks, WWPNs: n.WWPNs, NQNs: n.NQNs,
		Protocol: strings.ToLower(cmp.Or(own("access_protocol"), iscsi)), Domain: own("virtual_domain")})
}

// hostsOf returns the host uuids to unpublish from: the node's, or with none
// named all that may have the volume.
func (b *Backend) hostsOf(ctx context.Context, volume, node string) ([]string, error) {
	if node != "" {
		n, _, err := kube.ParseNodeID(node)
		if err != nil {
			// No node of this driver: it has no volume either.
			return nil, nil
		}
		return []string{n.UUID}, nil
	}
	rec, err := b.nodesOf(ctx, volume)
	if err != nil {
		return nil, err
	}
	var out []string
	for uuid := range rec.Params {
		out = append(out, uuid)
	}
	if b.cfg.Cluster != nil {
		ns, err := b.cfg.Cluster.NodeInfos(ctx)
		if err != nil {
			return nil, clusterFailed(ctx, err)
		}
		for _, n := range ns {
			out = append(out, n.UUID)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}
