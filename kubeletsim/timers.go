package kubeletsim

import "time"

// Timers are all the times that a kubelet waits for something. The zero value
// of a field is that of RealTimers.
type Timers struct {
	// NodeStatusUpdate is how often kubelet looks whether the status of its Node
	// has changed and, unless Eager, the only moment when volumesInUse is reported:
	// an attachable volume waits for it. Real: 10 s (pkg/kubelet/apis/config/v1beta1/defaults.go).
	NodeStatusUpdate time.Duration
	// NodeStatusReport is how often the status is written though nothing has
	// changed. Real: 5 min (nodeStatusReportFrequency; the random delay that
	// spreads the writes of many nodes is left out).
	NodeStatusReport time.Duration
	// LeaseRenew is how often the node's Lease is renewed. Real: 10 s, a quarter of
	// nodeLeaseDurationSeconds (pkg/kubelet/kubelet.go, nodeLeaseRenewIntervalFraction).
	LeaseRenew time.Duration
	// SyncFrequency is how often a running pod is synced without a cause; unless
	// Eager this is when an online resize is noticed. Real: 1 min (syncFrequency).
	SyncFrequency time.Duration
	// PodBackOff is the wait after a pod's sync failed. Real: 10 s
	// (pkg/kubelet/kubelet.go, backOffPeriod).
	PodBackOff time.Duration
	// MountTimeout bounds the wait for all volumes of a pod in one sync. Real:
	// 2 min 3 s (pkg/kubelet/volumemanager/volume_manager.go:77).
	MountTimeout time.Duration
	// BackOff and BackOffMax are the first and the largest wait after a failed
	// volume or registration operation; each failure doubles it. Real: 500 ms
	// and 2 min 2 s (pkg/util/goroutinemap/exponentialbackoff/exponential_backoff.go:30-37).
	BackOff, BackOffMax time.Duration
	// CSICall is the deadline of a CSI operation with all its calls. Real: 2 min
	// (pkg/volume/csi/csi_plugin.go, csiTimeout).
	CSICall time.Duration
	// RegistrationDial, RegistrationInfo and RegistrationNotify are the deadlines
	// of the steps of a registration. Real: 10 s, 1 s, 5 s
	// (pkg/kubelet/pluginmanager/operationexecutor/operation_generator.go:37,72).
	RegistrationDial, RegistrationInfo, RegistrationNotify time.Duration
	// StatusRetry is the wait before a write to the API server that failed is
	// tried again. Real: 10 s (pkg/kubelet/status/status_manager.go, syncPeriod).
	StatusRetry time.Duration
	// ContainerStop is how long containers take to stop. Real and fast: 0, they
	// obey SIGTERM at once.
	ContainerStop time.Duration
	// Eager posts the node status and syncs pods as soon as something they depend
	// on has changed, not only at the next tick. Real: no.
	Eager bool
}

// RealTimers are kubelet's defaults.
func RealTimers() Timers {
	return Timers{
		NodeStatusUpdate: 10 * time.Second, NodeStatusReport: 5 * time.Minute, LeaseRenew: 10 * time.Second, SyncFrequency: time.Minute, PodBackOff: 10 * time.Second,
		MountTimeout: 2*time.Minute + 3*time.Second,
		BackOff:      500 * time.Millisecond, BackOffMax: 2*time.Minute + 2*time.Second, CSICall: 2 * time.Minute,
		RegistrationDial: 10 * time.Second, RegistrationInfo: time.Second, RegistrationNotify: 5 * time.Second,
		StatusRetry: 10 * time.Second,
	}
}

// FastTimers are for tests on the wall clock.
func FastTimers() Timers {
	return Timers{
		NodeStatusUpdate: time.Second, NodeStatusReport: 5 * time.Second, LeaseRenew: time.Second, SyncFrequency: 5 * time.Second, PodBackOff: 200 * time.Millisecond,
		MountTimeout: 10 * time.Second,
		BackOff:      25 * time.Millisecond, BackOffMax: time.Second, CSICall: 10 * time.Second,
		RegistrationDial: time.Second, RegistrationInfo: time.Second, RegistrationNotify: 2 * time.Second,
		StatusRetry: 100 * time.Millisecond,
		Eager:       true,
	}
}

func (t Timers) withDefaults() Timers {
	r := RealTimers()
	for _, f := range []struct {
		p *time.Duration
		d time.Duration
	}{
		{&t.NodeStatusUpdate, r.NodeStatusUpdate}, {&t.NodeStatusReport, r.NodeStatusReport}, {&t.LeaseRenew, r.LeaseRenew}, {&t.SyncFrequency, r.SyncFrequency}, {&t.PodBackOff, r.PodBackOff},
		{&t.MountTimeout, r.MountTimeout}, {&t.BackOff, r.BackOff}, {&t.BackOffMax, r.BackOffMax}, {&t.CSICall, r.CSICall},
		{&t.RegistrationDial, r.RegistrationDial}, {&t.RegistrationInfo, r.RegistrationInfo},
		{&t.RegistrationNotify, r.RegistrationNotify}, {&t.StatusRetry, r.StatusRetry},
	} {
		if *f.p == 0 {
			*f.p = f.d
		}
	}
	return t
}
