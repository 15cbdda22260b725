// Command csi-driver is the CSI driver csi.vsphere.vmware.com.
package main

import (
	"os"

	"github.com/csilab/csilab/driver"
)

func main() { os.Exit(driver.Main(os.Args[1:], os.Getenv, os.Stdout, os.Stderr)) }
