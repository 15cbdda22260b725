package provisioner

import (
	"errors"
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csilab/csilab/sim/kube/sidecar"
)

// request is a CreateVolume call and what of the class goes into the PV.
type request struct {
	req    *csi.CreateVolumeRequest
	fsType string
	source corev1.CSIPersistentVolumeSource // secret references
	secret *corev1.SecretReference          // for CreateVolume and DeleteVolume
}

// Parameters of a class that are for the sidecars: all others with the prefix
// are refused (P controller.go:999 removePrefixedParameters).
const fsTypeKey = sidecar.ParameterPrefix + "fstype"

var (
	defaultSecret = sidecar.Prefixed("Default", "")
	secretKeys    = []struct {
		sidecar.SecretKeys
		set func(*corev1.CSIPersistentVolumeSource, *corev1.SecretReference)
	}{
		{sidecar.Prefixed("ControllerPublish", "controller-publish"), func(s *corev1.CSIPersistentVolumeSource, r *corev1.SecretReference) { s.ControllerPublishSecretRef = r }},
		{sidecar.Prefixed("NodeStage", "node-stage"), func(s *corev1.CSIPersistentVolumeSource, r *corev1.SecretReference) { s.NodeStageSecretRef = r }},
		{sidecar.Prefixed("NodePublish", "node-publish"), func(s *corev1.CSIPersistentVolumeSource, r *corev1.SecretReference) { s.NodePublishSecretRef = r }},
		{sidecar.Prefixed("ControllerExpand", "controller-expand"), func(s *corev1.CSIPersistentVolumeSource, r *corev1.SecretReference) { s.ControllerExpandSecretRef = r }},
		{sidecar.Prefixed("NodeExpand", "node-expand"), func(s *corev1.CSIPersistentVolumeSource, r *corev1.SecretReference) { s.NodeExpandSecretRef = r }},
	}
	provisionerSecret = sidecar.Prefixed("Provisioner", "provisioner")
)

// driverParameters is the parameters of a class that the driver sees.
func driverParameters(params map[string]string) (map[string]string, error) {
	known := map[string]bool{fsTypeKey: true, defaultSecret.Name: true, defaultSecret.Namespace: true,
		provisionerSecret.Name: true, provisionerSecret.Namespace: true}
	for _, k := range secretKeys {
		known[k.Name], known[k.Namespace] = true, true
	}
	out := map[string]string{}
	for k, v := range params {
		switch {
		case !strings.HasPrefix(k, sidecar.ParameterPrefix):
			out[k] = v
		case !known[k]:
			return nil, fmt.Errorf("failed to strip CSI Parameters of prefixed keys: found unknown parameter key %q with reserved namespace %s", k, sidecar.ParameterPrefix)
		}
	}
	return out, nil
}

// fsType is the filesystem that a class asks for, under one key of two.
func fsType(params map[string]string, def string) (string, error) {
	out, n := "", 0
	for k, v := range params {
		if strings.EqualFold(k, "fstype") || k == fsTypeKey {
			out, n = v, n+1
		}
	}
	if n > 1 {
		return "", fmt.Errorf("fstype specified in parameters with both \"fstype\" and %q keys", fsTypeKey)
	}
	if out == "" {
		out = def
	}
	return out, nil
}

// prepare checks a claim and its class and makes the request of them. Its
// state says whether an earlier attempt may be running still: where it does
// not know, a claim in progress stays so (P controller.go:552 prepareProvision).
func (h *handler) prepare(pvc *corev1.PersistentVolumeClaim, sc *storagev1.StorageClass, node *corev1.Node) (*request, state, error) {
	kind := ""
	if ds := pvc.Spec.DataSource; ds != nil {
		kind = ds.Kind
		if ds.Name == "" {
			return nil, finished, fmt.Errorf("the PVC source not found for PVC %s", pvc.Name)
		}
		switch kind {
		case snapshotKind:
			if ds.APIGroup == nil || *ds.APIGroup != snapshotGroup {
				got := ""
				if ds.APIGroup != nil {
					got = *ds.APIGroup
				}
				return nil, finished, fmt.Errorf("the PVC source does not belong to the right APIGroup. Expected %s, Got %s", snapshotGroup, got)
			}
		case claimKind:
		default:
			return nil, finished, errStop // left to a volume populator
		}
	}
	if err := h.capable(kind); err != nil {
		return nil, finished, err
	}
	if pvc.Spec.Selector != nil {
		return nil, finished, errors.New("claim Selector is not supported")
	}
	r := &request{}
	var err error
	if r.fsType, err = fsType(sc.Parameters, h.flags.DefaultFSType); err != nil {
		return nil, finished, err
	}
	capacity := pvc.Spec.Resources.Requests[corev1.ResourceStorage]
	r.req = &csi.CreateVolumeRequest{
		Name:          "pvc-" + string(pvc.UID),
		CapacityRange: &csi.CapacityRange{RequiredBytes: capacity.Value()},
	}
	for _, m := range pvc.Spec.AccessModes {
		c, err := sidecar.Capability([]corev1.PersistentVolumeAccessMode{m}, h.Controller[csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER],
			sidecar.IsBlock(pvc.Spec.VolumeMode), r.fsType, sc.MountOptions)
		if err != nil {
			return nil, finished, err
		}
		r.req.VolumeCapabilities = append(r.req.VolumeCapabilities, c)
	}
	if kind != "" {
		if r.req.VolumeContentSource, err = h.contentSource(pvc, sc); err != nil {
			return nil, noChange, fmt.Errorf("error getting handle for DataSource Type %s by Name %s: %w", kind, pvc.Spec.DataSource.Name, err)
		}
	}
	if h.topology() {
		if r.req.AccessibilityRequirements, err = h.requirements(pvc.Name, sc.AllowedTopologies, node); err != nil {
			return nil, noChange, fmt.Errorf("error generating accessibility requirements: %w", err)
		}
	}
	if err := h.secrets(r, sc.Parameters, pvc); err != nil {
		return nil, noChange, err
	}
	if r.req.Parameters, err = driverParameters(sc.Parameters); err != nil {
		return nil, finished, err
	}
	if h.flags.ExtraCreateMetadata {
		r.req.Parameters[sidecar.ParameterPrefix+"pvc/name"] = pvc.Name
		r.req.Parameters[sidecar.ParameterPrefix+"pvc/namespace"] = pvc.Namespace
		r.req.Parameters[sidecar.ParameterPrefix+"pv/name"] = r.req.Name
	}
	return r, noChange, nil
}

// capable says whether the driver can do what the claim needs (P controller.go:423).
func (h *handler) capable(source string) error {
	switch {
	case !h.Plugin[csi.PluginCapability_Service_CONTROLLER_SERVICE]:
		return errors.New("CSI driver does not support dynamic provisioning: plugin CONTROLLER_SERVICE capability is not reported")
	case !h.Controller[csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME]:
		return errors.New("CSI driver does not support dynamic provisioning: controller CREATE_DELETE_VOLUME capability is not reported")
	case source == snapshotKind && !h.Controller[csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT]:
		return errors.New("CSI driver does not support snapshot restore: controller CREATE_DELETE_SNAPSHOT capability is not reported")
	case source == claimKind && !h.Controller[csi.ControllerServiceCapability_RPC_CLONE_VOLUME]:
		return errors.New("CSI driver does not support clone operations: controller CLONE_VOLUME capability is not reported")
	}
	return nil
}

// secrets resolves the references of a class and reads the provisioner's.
func (h *handler) secrets(r *request, params map[string]string, pvc *corev1.PersistentVolumeClaim) error {
	forNS := map[string]string{"pv.name": r.req.Name, "pvc.namespace": pvc.Namespace}
	forName := map[string]string{"pv.name": r.req.Name, "pvc.namespace": pvc.Namespace, "pvc.name": pvc.Name}
	for k, v := range pvc.Annotations {
		forName["pvc.annotations['"+k+"']"] = v
	}
	resolve := func(k sidecar.SecretKeys) (*corev1.SecretReference, error) {
		ref, err := k.Reference(params, forName, forNS)
		if ref == nil && err == nil {
			return defaultSecret.Reference(params, forName, forNS)
		}
		return ref, err
	}
	var err error
	if r.secret, err = resolve(provisionerSecret); err != nil {
		return err
	}
	if r.req.Secrets, err = sidecar.Credentials(h.Client, r.secret); err != nil {
		return err
	}
	for _, k := range secretKeys {
		ref, err := resolve(k.SecretKeys)
		if err != nil {
			return err
		}
		k.set(&r.source, ref)
	}
	return nil
}
