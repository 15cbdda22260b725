// Package bench measures csilab's vCenter beside stock vcsim with govmomi's
// cns/simulator, in the same run and with the same client: `make bench-vcenter`.
//
// It is a package of its own since cns/simulator registers itself with vcsim
// for the whole process.
package bench
