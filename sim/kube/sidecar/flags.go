package sidecar

import "time"

// Names of the sidecars: the component that a call on the hops csi and kube
// is recorded under.
const (
	Provisioner        = "csi-provisioner"
	Attacher           = "csi-attacher"
	Resizer            = "csi-resizer"
	Snapshotter        = "csi-snapshotter"
	SnapshotController = "snapshot-controller"
)

// Flags are the command line flags of one sidecar that change what it does.
// A flag that the sidecar does not have is not read.
type Flags struct {
	// Timeout of one call of the driver (--timeout). > 0.
	Timeout time.Duration
	// RetryStart and RetryMax bound the back-off of a failing object, which
	// doubles (--retry-interval-start, --retry-interval-max). > 0.
	RetryStart, RetryMax time.Duration
	// Workers is how many objects are worked on at once (--worker-threads, --workers). > 0.
	Workers int
	// Resync looks at all objects again at this interval; 0 is never.
	Resync time.Duration

	// DefaultFSType is used where the StorageClass has none (provisioner, --default-fstype).
	DefaultFSType string
	// Topology passes accessibility requirements to a driver that has
	// VOLUME_ACCESSIBILITY_CONSTRAINTS (provisioner, --feature-gates=Topology).
	// With it every node needs topology labels, or nothing is provisioned.
	Topology bool
	// StrictTopology passes the selected node's topology only (provisioner, --strict-topology).
	StrictTopology bool
	// ImmediateTopology passes the topology of all nodes for a volume without
	// a selected node (provisioner, --immediate-topology).
	ImmediateTopology bool
	// ExtraCreateMetadata adds names of API objects to the parameters
	// (provisioner, snapshotter, --extra-create-metadata).
	ExtraCreateMetadata bool
	// ReconcileSync compares attachments with ListVolumes at this interval,
	// where the driver lists published nodes; 0 is never (attacher, --reconcile-sync).
	ReconcileSync time.Duration
	// HandleVolumeInUseError keeps back the expansion of a volume in use after
	// the driver refused it once (resizer, --handle-volume-inuse-error).
	HandleVolumeInUseError bool
}

// Backoff is a delay that doubles from Start to Max.
type Backoff struct{ Start, Max time.Duration }

// Next is the delay after d; d == 0 is no delay yet.
func (b Backoff) Next(d time.Duration) time.Duration {
	if d <= 0 {
		return b.Start
	}
	return min(2*d, b.Max)
}

// Set is the flags of all sidecars of one driver.
type Set struct {
	Provisioner, Attacher, Resizer, Snapshotter, SnapshotController Flags
	// Probe is the interval at which a driver that is not ready is asked again.
	Probe time.Duration
	// Restart is the back-off of a sidecar that exited.
	Restart Backoff
}

// Real is the flags of the vSphere driver's deployment
// (kubernetes-sigs/vsphere-csi-driver manifests/vanilla/vsphere-csi-driver.yaml:
// --timeout=300s everywhere, --default-fstype=ext4, --extra-create-metadata for
// the snapshotter, --handle-volume-inuse-error=false) over each sidecar's
// defaults:
//   - external-attacher v4.12.0 cmd/csi-attacher/main.go:69 (10 workers, 1 s to 5 min, resync 10 min, reconcile 1 min)
//   - external-provisioner v5.3.0 cmd/csi-provisioner/csi-provisioner.go:85 (100 workers, 1 s to 5 min, immediate topology),
//     its library v11.0.1 controller/controller.go:190 (resync 15 min)
//   - external-resizer cmd/csi-resizer/main.go (10 workers, 1 s to 5 min, resync 10 min)
//   - external-snapshotter v8.6.0 cmd/csi-snapshotter/main.go:85 and cmd/snapshot-controller/main.go:82 (10 workers, 1 s to 5 min, resync 15 min)
//
// The topology gate is off, as in that manifest and by default in the
// provisioner v4.0.1 that it pins; a lab whose nodes have zones turns it on.
// The restart back-off is the kubelet's (kubernetes v1.37.2 pkg/kubelet/kubelet.go:166, 173:
// 10 s to 5 min), the probe interval csi-lib-utils' (v0.25.0 rpc/common.go:35).
func Real() Set {
	f := Flags{Timeout: 300 * time.Second, RetryStart: time.Second, RetryMax: 5 * time.Minute, Workers: 10, Resync: 15 * time.Minute}
	s := Set{Provisioner: f, Attacher: f, Resizer: f, Snapshotter: f, SnapshotController: f,
		Probe: time.Second, Restart: Backoff{10 * time.Second, 5 * time.Minute}}
	s.Provisioner.Workers = 100
	s.Provisioner.DefaultFSType = "ext4"
	s.Provisioner.ImmediateTopology = true
	s.Attacher.Resync = 10 * time.Minute
	s.Attacher.ReconcileSync = time.Minute
	s.Resizer.Resync = 10 * time.Minute
	s.Snapshotter.ExtraCreateMetadata = true
	return s
}

// Fast is Real with retries, resyncs and restarts about a hundred times, and
// timeouts ten times, as fast: for the wall clock.
func Fast() Set {
	s := Real()
	for _, f := range []*Flags{&s.Provisioner, &s.Attacher, &s.Resizer, &s.Snapshotter, &s.SnapshotController} {
		f.Timeout = 30 * time.Second
		f.RetryStart = 20 * time.Millisecond
		f.RetryMax = time.Second
		f.Resync /= 100
	}
	s.Attacher.ReconcileSync = 5 * time.Second
	s.Probe = 50 * time.Millisecond
	s.Restart = Backoff{50 * time.Millisecond, time.Second}
	return s
}
