// Package vsphere is the vSphere backend of the controller service: volumes
// are first class disks that vCenter's Cloud Native Storage (CNS) manages.
//
// Names, parameters, contexts, ids and the configuration file are those of
// kubernetes-sigs/vsphere-csi-driver, so that manifests and Secrets can be
// exchanged. What that driver does otherwise than the CSI specification says,
// this one does as the specification says.
//
// # Outcomes are found, not repeated
//
// A change on the backend is a CNS task. Its reply, its end, the session that
// waits for it and the driver itself can get lost at any point, and CNS takes
// a second request for a second volume: names aren't unique there. So every
// change goes the same way (operation.go):
//
//  1. claim the subject, a volume or the name of one to be made: there is one
//     operation at a time on it in this process, and one driver per cluster
//     (the sidecars elect a leader);
//  2. settle: when a record says that an earlier operation on the subject was
//     begun, wait for the end of its task, whatever it was;
//  3. look at the backend: is it done already, may it be done? A create looks
//     by name and cluster, an attach and detach at the VM's hardware, a
//     snapshot by its description <name>-<volume>, an expand at the size, a
//     delete for the volume;
//  4. write a record, begin the task, add the task's id to the record;
//  5. wait for the end; the record goes when it is known what is there: the
//     task has ended well, or a look was answered;
//  6. after any failure settle and look again before answering. What counts is
//     what is there, not what a fault says.
//
// Why this makes no duplicate: a second request is sent only after step 3
// found nothing, and then no earlier request can still take effect. Such a
// request either has a task or has not.
//
//   - With a task, step 2 has waited for its end. The task is known by the
//     record; or, when its reply was lost, by the operation id that every
//     request carries and that the task shows as its activation id: the task
//     manager lists all tasks that wait or run. That also covers records that
//     were lost with the disk of an earlier process: the first login looks for
//     running tasks of this cluster before anything is begun.
//   - Without a task it was lost on its way there, or is still underway in the
//     network or in the vCenter's queue. A request isn't given up with its
//     caller: it runs until it is answered, the connection breaks, or
//     Options.CallTimeout has passed. After one that broke, step 2 waits until
//     Options.Settle has passed since it was sent. A request that is held up
//     for longer than that in front of a vCenter that has closed its
//     connection is the gap that is left; closing it needs volume ids chosen by
//     the caller, which CNS takes from 9.1 on.
//
// Unverified: that every version of CNS hands the operation id of a request to
// its task. Where it doesn't, a task whose name was lost is found by its effect
// only, after Options.Settle.
//
// A task that never ends keeps its subject: each call waits for it until the
// caller's deadline. A second request could do the same thing twice.
//
// # Errors
//
// An error is final (Internal and others) only when the backend said no and
// nothing was done. When the outcome isn't known it is Unavailable, Aborted,
// DeadlineExceeded or Canceled, which callers take for "may have happened".
//
// # Where volumes go
//
// On a datastore that every connected host of the configured datacenters
// reaches, or with topology every host of a zone. Hosts that never run a node
// of the cluster count too: keep them in another datacenter, or use topology.
package vsphere
