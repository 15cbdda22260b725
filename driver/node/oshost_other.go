//go:build !linux

package node

import (
	"fmt"
	"runtime"
)

// OS is the operating system that this process runs on. Volumes can be mounted
// on Linux only.
func OS() (Host, error) {
	return nil, fmt.Errorf("node: volumes can't be mounted on %s, only on linux", runtime.GOOS)
}
