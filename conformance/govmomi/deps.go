package conformance

// What the tests that are run need, so that `go mod tidy` keeps it.
import (
	_ "github.com/dougm/pretty"
	_ "github.com/google/uuid"
	_ "github.com/stretchr/testify/assert"
	_ "github.com/vmware/govmomi/cns"
	_ "github.com/vmware/govmomi/pbm"
	_ "github.com/vmware/govmomi/vslm"
)
