module github.com/csilab/csilab/conformance/govmomi

go 1.26.0

require (
	github.com/dougm/pretty v0.0.0-20160325215624-add1dbc86daf
	github.com/stretchr/testify v1.12.1
	github.com/vmware/govmomi v0.56.0
)

require go.yaml.in/yaml/v3 v3.0.5 // indirect

require (
	github.com/google/uuid v1.6.0
	github.com/kr/text v0.2.0 // indirect
	github.com/rogpeppe/go-internal v1.16.0 // indirect
)
