// Package apart keeps apart what waits from one moment on: calls about several
// volumes often fail, or begin, together. Where they wake together too, they come
// upon the backend and upon what they share (a turn, a pool, a login) all at once,
// and in an order that is by chance.
package apart

import (
	"hash/fnv"
	"time"
)

// By is what a wait takes longer: less than a millisecond, in ns, and always the same
// for what waits, e.g. the id of a task or the serial number of a volume.
func By(what string) time.Duration {
	h := fnv.New32a()
	h.Write([]byte(what))
	return time.Duration(h.Sum32() % uint32(time.Millisecond))
}
