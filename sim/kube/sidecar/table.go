// Package sidecar is what the CSI sidecars have in common: one table of the
// calls that they make with timeout, back-off and what each answer means, the
// handshake with the driver, and the restart of a sidecar that lost it.
package sidecar

import (
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Call is one RPC that a sidecar makes: a row of the table that the sidecars
// work from.
type Call struct {
	Sidecar string
	RPC     string
	// Timeout of one call.
	Timeout time.Duration
	// Retry is the back-off of the object that the call is made for. A zero
	// Retry: the sidecar exits on an error.
	Retry Backoff
	// Workers is how many such calls run at once.
	Workers int
	// Uncertain are the codes after which the operation may still be running
	// or done. All others are final: it isn't.
	Uncertain []codes.Code
	// Infeasible are the final codes after which a retry is slow, since it is
	// not expected to succeed.
	Infeasible []codes.Code
	// Then says what the sidecar does on an error.
	Then string
	// Source is where the real sidecar says so.
	Source string
}

// Final says that the operation has failed for good: it is not running and has
// no effect. An error that is no gRPC status was made before the call, and an
// earlier call may be running still: it is not final.
func (c Call) Final(err error) bool {
	st, ok := status.FromError(err)
	return ok && err != nil && !slices.Contains(c.Uncertain, st.Code())
}

// NotFeasible says that the request can't succeed as it stands.
func (c Call) NotFeasible(err error) bool {
	st, ok := status.FromError(err)
	return ok && err != nil && slices.Contains(c.Infeasible, st.Code())
}

// Codes that leave open whether an operation is running.
var (
	// A CreateVolume that is ResourceExhausted is taken for an answer of the
	// driver (out of space), not of the transport.
	uncertainCreate = []codes.Code{codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted}
	uncertain       = append(slices.Clone(uncertainCreate), codes.ResourceExhausted)
)

// attacherShort is the timeout of the attacher's handshake calls
// (external-attacher v4.12.0 cmd/csi-attacher/main.go:62).
const attacherShort = time.Second

// Table is all calls that the sidecars with these flags make.
func (s Set) Table() []Call {
	row := func(sc string, f Flags, rpc string, unc []codes.Code, then, source string) Call {
		return Call{Sidecar: sc, RPC: rpc, Timeout: f.Timeout, Retry: Backoff{f.RetryStart, f.RetryMax}, Workers: f.Workers, Uncertain: unc, Then: then, Source: source}
	}
	hello := func(sc string, timeout time.Duration, rpc, source string) Call {
		return Call{Sidecar: sc, RPC: rpc, Timeout: timeout, Workers: 1, Then: "the sidecar exits and is restarted", Source: source}
	}
	const (
		attacher    = "external-attacher v4.12.0 "
		provisioner = "external-provisioner v5.3.0 "
		resizer     = "external-resizer (path of v2) "
		snapshotter = "external-snapshotter v8.6.0 "
		ready       = "; not ready or a timeout: asked again (csi-lib-utils v0.25.0 rpc/common.go:136)"
	)
	expand := row(Resizer, s.Resizer, "ControllerExpandVolume", uncertain,
		"event VolumeResizeFailed; final: condition ControllerResizeError, and a lower request may follow at once; infeasible: status ControllerResizeInfeasible, retried after RetryMax; uncertain: the same size again",
		resizer+"pkg/util/util.go IsFinalError, IsResizeInfeasibleError; pkg/controller/expand_and_recover.go")
	expand.Infeasible = []codes.Code{codes.InvalidArgument, codes.OutOfRange, codes.NotFound}
	return []Call{
		hello(Provisioner, s.Provisioner.Timeout, "Probe", provisioner+"cmd/csi-provisioner/csi-provisioner.go:235"+ready),
		hello(Provisioner, s.Provisioner.Timeout, "GetPluginInfo", provisioner+"cmd/csi-provisioner/csi-provisioner.go:242"),
		hello(Provisioner, s.Provisioner.Timeout, "GetPluginCapabilities", provisioner+"pkg/controller/controller.go GetDriverCapabilities"),
		hello(Provisioner, s.Provisioner.Timeout, "ControllerGetCapabilities", provisioner+"pkg/controller/controller.go GetDriverCapabilities"),
		row(Provisioner, s.Provisioner, "CreateVolume", uncertainCreate,
			"event ProvisioningFailed; uncertain: the claim is kept in memory and tried again even when it was deleted; ResourceExhausted with a selected node and topology: the node is deselected; other final codes: tried again while the claim exists",
			provisioner+"pkg/controller/controller.go:1880 checkError; sig-storage-lib-external-provisioner v11.0.1 controller/controller.go:1082 syncClaim"),
		row(Provisioner, s.Provisioner, "DeleteVolume", uncertain,
			"event VolumeFailedDelete; the PV stays Released and is tried again, whatever the code",
			"sig-storage-lib-external-provisioner v11.0.1 controller/controller.go:1557 deleteVolumeOperation"),

		hello(Attacher, s.Attacher.Timeout, "Probe", attacher+"cmd/csi-attacher/main.go:157"+ready),
		hello(Attacher, attacherShort, "GetPluginInfo", attacher+"cmd/csi-attacher/main.go:167"),
		hello(Attacher, attacherShort, "GetPluginCapabilities", attacher+"cmd/csi-attacher/main.go:215"),
		hello(Attacher, attacherShort, "ControllerGetCapabilities", attacher+"cmd/csi-attacher/main.go:231"),
		row(Attacher, s.Attacher, "ControllerPublishVolume", uncertain,
			"attachError with text and code; tried again; a deleted VolumeAttachment is unpublished whatever the last answer was",
			attacher+"pkg/attacher/attacher.go:90 isFinalError; pkg/controller/csi_handler.go:429 csiAttach ignores it"),
		row(Attacher, s.Attacher, "ControllerUnpublishVolume", uncertain,
			"detachError; the finalizer stays; tried again, whatever the code",
			attacher+"pkg/controller/csi_handler.go:536 csiDetach"),
		row(Attacher, s.Attacher, "ListVolumes", uncertain,
			"logged; next try at the next reconcile interval",
			attacher+"pkg/controller/csi_handler.go:126 ReconcileVA"),

		hello(Resizer, s.Resizer.Timeout, "Probe", resizer+"pkg/csi/client.go"+ready),
		hello(Resizer, s.Resizer.Timeout, "GetPluginInfo", resizer+"cmd/csi-resizer/main.go getDriverName"),
		hello(Resizer, s.Resizer.Timeout, "GetPluginCapabilities", resizer+"pkg/resizer/csi_resizer.go supportsPluginControllerService"),
		row(Resizer, s.Resizer, "ControllerGetCapabilities", uncertain,
			"at start: the sidecar exits; before each expansion: as ControllerExpandVolume, but not final",
			resizer+"pkg/resizer/csi_resizer.go supportsControllerResize, getVolumeCapabilities"),
		expand,

		hello(Snapshotter, s.Snapshotter.Timeout, "GetPluginInfo", snapshotter+"cmd/csi-snapshotter/main.go:198"),
		hello(Snapshotter, s.Snapshotter.Timeout, "Probe", snapshotter+"cmd/csi-snapshotter/main.go:225"+ready),
		row(Snapshotter, s.Snapshotter, "ControllerGetCapabilities", uncertain,
			"at start: the sidecar exits; before ListSnapshots: as ListSnapshots",
			snapshotter+"cmd/csi-snapshotter/main.go:233; pkg/snapshotter/snapshotter.go isListSnapshotsSupported"),
		row(Snapshotter, s.Snapshotter, "CreateSnapshot", uncertain,
			"status.error and event; uncertain: annotation volumesnapshot-being-created stays and keeps the content from being deleted until an answer comes; tried again",
			snapshotter+"pkg/sidecar-controller/snapshot_controller.go isCSIFinalError, createSnapshotWrapper"),
		row(Snapshotter, s.Snapshotter, "DeleteSnapshot", uncertain,
			"event SnapshotDeleteError; the finalizer stays; tried again, whatever the code",
			snapshotter+"pkg/sidecar-controller/snapshot_controller.go deleteCSISnapshotOperation"),
		row(Snapshotter, s.Snapshotter, "ListSnapshots", uncertain,
			"status.error and event; tried again",
			snapshotter+"pkg/sidecar-controller/snapshot_controller.go checkandUpdateContentStatusOperation; pre-provisioned snapshots only"),
	}
}

// Unused is the RPCs of the Controller service that no sidecar with these
// flags calls, each with the reason.
var Unused = map[string]string{
	"ValidateVolumeCapabilities": "no sidecar calls it",
	"GetCapacity":                "the provisioner calls it with --enable-capacity only",
	"ControllerGetVolume":        "external-health-monitor's, not deployed; alpha in the CSI spec",
	"ControllerGetVolumeHealth":  "alpha in the CSI spec; no sidecar calls it",
	"ControllerListVolumeHealth": "alpha in the CSI spec; no sidecar calls it",
	"ControllerModifyVolume":     "the resizer's, for VolumeAttributesClass: not simulated",
	"GetSnapshot":                "external-snapshotter v8.6.0 uses ListSnapshots; alpha in the CSI spec",
}

// Calls is the rows of one sidecar by RPC.
func (s Set) Calls(name string) map[string]Call {
	out := map[string]Call{}
	for _, c := range s.Table() {
		if c.Sidecar == name {
			out[c.RPC] = c
		}
	}
	return out
}
