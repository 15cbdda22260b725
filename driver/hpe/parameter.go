package hpe

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/csilab/csilab/driver/controller"
	"github.com/csilab/csilab/driver/hpe/kube"
)

// Parameters of a StorageClass that the driver itself reads. All parameters go
// to the provider, in snake case, but those of the orchestrator's
// (csi.storage.k8s.io/…).
const (
	paramAccessProtocol = "accessProtocol"
	paramDescription    = "description"
	paramFSType         = "fsType"
	paramFSOwner        = "fsOwner"
	paramFSMode         = "fsMode"
	paramFSOptions      = "fsCreateOptions"
	paramFSRepair       = "fsRepair"
	paramOverrides      = "allowOverrides"
	paramMutations      = "allowMutations"
	paramCHAPSecret     = "chapSecretName"
	paramCHAPNamespace  = "chapSecretNamespace"
	paramVirtualDomain  = "virtualDomain"
	paramTargetScope    = "targetScope"
	// "active": Active Peer Persistence (CON-4439, CON-4448).
	paramReplicationPolicy = "replicationPolicy"
	paramCloneOf           = "cloneOf"
	paramVirtualCopyOf     = "virtualCopyOf"

	// annotations of claims begin so.
	annotation = "csi.hpe.com/"
	// orchestrator's parameters begin so.
	foreign = "csi.storage.k8s.io/"
)

// Access protocols. NVMe/TCP is published for nodes of other drivers: the node
// side of this one has none.
const (
	iscsi   = "iscsi"
	fc      = "fc"
	nvmeTCP = "nvmetcp"
	nfs     = "nfs" // a share of files
)

var protocols = []string{iscsi, fc, nvmeTCP, nfs}

var (
	ownerForm   = regexp.MustCompile(`^[0-9]{1,10}:[0-9]{1,10}$`)
	modeForm    = regexp.MustCompile(`^[0-7]{1,4}$`)
	optionsForm = regexp.MustCompile(`^[a-zA-Z0-9=, \-]+$`)
)

// checkParameters refuses what the driver knows to be wrong; the provider
// checks what is its own.
func checkParameters(p map[string]string, access controller.Access) error {
	bad := func(key, allowed string) error {
		return controller.Errorf(controller.Invalid, "parameters: %s is %q, allowed: %s", key, p[key], allowed)
	}
	form := func(key string, re *regexp.Regexp, allowed string) error {
		if v, ok := p[key]; ok && !re.MatchString(v) {
			return bad(key, allowed)
		}
		return nil
	}
	for _, k := range []string{"hostSeesVLUN", "compression", paramFSRepair, "oneRcgPerPvc", "allowBatchReplicatedVolumeCreation", "hostEncryption", "nfsResources"} {
		if v, ok := p[k]; ok && v != "true" && v != "false" {
			return bad(k, "true, false")
		}
	}
	for _, k := range []string{"hostEncryption", "nfsResources"} {
		if p[k] == "true" {
			return controller.Errorf(controller.Invalid, "parameters: %s: not supported by this driver", k)
		}
	}
	if v, ok := p[paramAccessProtocol]; ok && !slices.Contains(protocols, v) {
		return bad(paramAccessProtocol, strings.Join(protocols, ", "))
	}
	if v := p[paramFSType]; v != "" && !slices.Contains(FSTypes, strings.ToLower(v)) {
		return bad(paramFSType, strings.Join(FSTypes, ", "))
	}
	// What a provider that doesn't know the word would silently take for another.
	if v := p[paramTargetScope]; v != "" && v != "group" && v != "volume" {
		return bad(paramTargetScope, "group, volume")
	}
	if v := p[paramReplicationPolicy]; v != "" && v != "active" {
		return bad(paramReplicationPolicy, "active, or nothing for Classic Peer Persistence")
	}
	for _, one := range [][2]string{{paramCloneOf, "importVolAsClone"}, {"importVolumeName", "importVolAsClone"}, {"importVolumeName", paramCloneOf},
		{paramCloneOf, paramVirtualCopyOf}, {"remoteCopyGroup", "oneRcgPerPvc"}} {
		if p[one[0]] != "" && p[one[1]] != "" && p[one[1]] != "false" {
			return controller.Errorf(controller.Invalid, "parameters: %s and %s exclude each other", one[0], one[1])
		}
	}
	if p["remoteCopyGroup"] != "" && p["replicationDevices"] == "" {
		return controller.Errorf(controller.Invalid, "parameters: remoteCopyGroup needs replicationDevices")
	}
	if err := checkFiles(p, access); err != nil {
		return err
	}
	if access.Block {
		for _, k := range []string{paramFSOwner, paramFSMode, paramFSOptions} {
			if access.Mount || p[k] == "" {
				continue
			}
			return controller.Errorf(controller.Invalid, "parameters: %s: a block volume has no file system", k)
		}
	}
	if err := form(paramFSOwner, ownerForm, "uid:gid, two numbers"); err != nil {
		return err
	}
	if err := form(paramFSMode, modeForm, "1 to 4 octal digits"); err != nil {
		return err
	}
	return form(paramFSOptions, optionsForm, "letters, digits, '=', ',', '-' and blanks")
}

// names splits a comma-separated parameter.
func names(list string) []string {
	var out []string
	for n := range strings.SplitSeq(list, ",") {
		if n = strings.TrimSpace(n); n != "" {
			out = append(out, n)
		}
	}
	return out
}

// parameters returns the parameters of a new volume: those of its class, with
// what its claim overrides and the class allows it to, and with claims that are
// named as sources replaced by their volumes.
func (b *Backend) parameters(ctx context.Context, r controller.CreateVolume) (map[string]string, error) {
	p := maps.Clone(r.Parameters)
	if p == nil {
		p = map[string]string{}
	}
	for k, v := range r.Mutable {
		if !slices.Contains(mutable, k) {
			return nil, controller.Errorf(controller.Invalid, "mutable_parameters: %s can't be changed, allowed: %s", k, strings.Join(mutable, ", "))
		}
		p[k] = v
	}
	namespace := p[foreign+"pvc/namespace"]
	if allowed := names(p[paramOverrides]); len(allowed) > 0 && b.cfg.Cluster != nil {
		c, err := b.claim(ctx, r.Name)
		if err != nil {
			return nil, err
		}
		namespace = c.Namespace
		for _, k := range allowed {
			if v, ok := c.Annotations[annotation+k]; ok {
				p[k] = v
			}
		}
	}
	for _, k := range []string{paramAccessProtocol, paramTargetScope, paramReplicationPolicy} {
		if v, ok := p[k]; ok {
			p[k] = strings.ToLower(v)
		}
	}
	// Before others are asked.
	if err := checkParameters(p, r.Access); err != nil {
		return nil, err
	}
	for _, k := range []string{paramCloneOf, paramVirtualCopyOf} {
		if p[k] == "" || b.cfg.Cluster == nil {
			continue
		}
		if namespace == "" {
			c, err := b.claim(ctx, r.Name)
			if err != nil {
				return nil, err
			}
			namespace = c.Namespace
		}
		c, err := b.cfg.Cluster.ClaimNamed(ctx, namespace, p[k])
		switch {
		case errors.Is(err, kube.ErrNotFound):
			return nil, controller.Errorf(controller.NotFound, "parameters: %s: there is no claim %s/%s", k, namespace, p[k])
		case err != nil:
			return nil, clusterFailed(ctx, err)
		case c.Volume == "":
			return nil, controller.Errorf(controller.Unavailable, "parameters: %s: claim %s/%s has no volume yet", k, namespace, p[k])
		}
		p[k] = c.Volume
	}
	maps.DeleteFunc(p, func(k, _ string) bool { return strings.HasPrefix(k, foreign) })
	return p, nil
}

// claim returns the claim that a volume is made for: its name is pvc- and the
// claim's uid.
func (b *Backend) claim(ctx context.Context, volume string) (kube.Claim, error) {
	uid, ok := strings.CutPrefix(volume, "pvc-")
	if !ok {
		return kube.Claim{}, controller.Errorf(controller.Invalid, "name %q: the claim can't be told from it, which the parameters need: pvc-<uid> is wanted", volume)
	}
	c, err := b.cfg.Cluster.Claim(ctx, uid)
	switch {
	case errors.Is(err, kube.ErrNotFound):
		// It may be too new to be known here.
		return c, controller.Errorf(controller.Unavailable, "the claim of volume %s: %w", volume, err)
	case err != nil:
		return c, clusterFailed(ctx, err)
	}
	return c, nil
}

func clusterFailed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	return controller.Errorf(controller.Unavailable, "the cluster: %w", err)
}

// configOf makes the provider's config of parameters.
func configOf(p map[string]string, shared bool) map[string]any {
	c := make(map[string]any, len(p)+1)
	for k, v := range p {
		if k != paramDescription {
			c[snake(k)] = v
		}
	}
	// Tells that the volume will have several hosts at once.
	c["multi_initiator"] = shared
	return c
}

// contextOf is a volume's context: the parameters, the file system, and what
// the provider says of the volume.
func contextOf(p map[string]string, access controller.Access, config map[string]any) map[string]string {
	out := maps.Clone(p)
	if access.Mount && p[paramAccessProtocol] != nfs {
		fs := access.FSType
		if fs == "" {
			fs = strings.ToLower(p[paramFSType])
		}
		if fs == "" {
			fs = DefaultFSType
		}
		out[paramFSType] = fs
	}
	for k, v := range config {
		if v == nil {
			continue
		}
		key := camel(k)
		// What the class says is more exact than the provider's echo of it.
		if _, ok := out[key]; ok || key == "backgroundOperationStatus" || spelled(out, k) {
			continue
		}
		out[key] = fmt.Sprint(v)
	}
	return out
}

// spelled reports that a key in snake case is among keys in camel case, which
// camel can't tell where there are capitals in a row (hostSeesVLUN).
func spelled(m map[string]string, key string) bool {
	for k := range m {
		if snake(k) == key {
			return true
		}
	}
	return false
}

var (
	snakeWord = regexp.MustCompile(`(.)([A-Z][a-z]+)`)
	snakeNext = regexp.MustCompile(`([a-z0-9])([A-Z])`)
)

// snake writes a key in snake case as providers know it: hostSeesVLUN is
// host_sees_vlun.
func snake(s string) string {
	s = snakeWord.ReplaceAllString(s, "${1}_${2}")
	return strings.ToLower(snakeNext.ReplaceAllString(s, "${1}_${2}"))
}

// camel is the reverse: access_protocol is accessProtocol.
func camel(s string) string {
	parts := strings.Split(s, "_")
	for i, p := range parts {
		if i > 0 && p != "" {
			parts[i] = strings.ToUpper(p[:1]) + p[1:]
		}
	}
	return strings.Join(parts, "")
}
