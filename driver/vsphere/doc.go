// Package vsphere is the vSphere backend of the controller service: volumes
// are first class disks that vCenter's Cloud Native Storage (CNS) manages.
package vsphere
