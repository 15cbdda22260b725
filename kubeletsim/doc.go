// Package kubeletsim is the node agent of a lab: it watches for CSI plugins
// and registers them, keeps the Node and CSINode objects, and mounts and
// unmounts the volumes of the pods that are bound to its node. Many run in one
// process; there is no state outside a Kubelet value.
//
// Where kubelet v1.37.2 has an answer it does the same: the same CSI calls in
// the same order, the same paths and files on the node, the same treatment of
// final and of uncertain errors, the same back-off. References of the form
// pkg/… are to that version of k8s.io/kubernetes. It differs in one thing: it
// reacts to events where kubelet polls its caches every 100 ms to 1 s.
//
// Known differences: a pod's containers are not processes (see
// Kubelet.WriteFile for what they can do); a raw block volume is not held open
// by a loop device (pkg/volume/util/util.go:448); subPaths are directories of
// the volume, not bind mounts; SELinux, inline ephemeral CSI volumes, service
// account tokens for drivers, static pods, probes and the periodic update of
// the attach limit (nodeAllocatableUpdatePeriodSeconds) are not modelled; a pod's
// directory is removed before its object, not some time after; timers have no
// jitter. Unlike kubelet v1.37.2 a restart also finds volumes that are staged and
// that no pod has any more, and a volume that it found and that is attached again
// stays in volumesInUse until it is unstaged, see Config.Forgetful.
package kubeletsim
