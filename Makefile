# Each target states its time budget on 2 cores with a warm module cache.
GO        ?= go
PKGS      ?= ./...
BIN       := bin
BENCHTIME ?= 1s

.PHONY: all build test race lint vet staticcheck cross cross-tests bench bench-vcenter soak soak-short mutants soak-vcenter mutants-incidents conformance fuzz clean

all: build

build: ## 1 min: the two binaries
	$(GO) build -o $(BIN)/ ./cmd/...

test: lint race soak-short ## 10 min: what CI runs

race: ## 6 min, 8 with compiling; one of them the soak of the vCenter; four packages at a time, for many tests wait
	GOGC=800 CSILAB_SOAK=1m $(GO) test -race -shuffle=on -vet=off -ldflags=-w -p 4 -timeout 25m $(PKGS)

lint: vet staticcheck cross ## 2 min

vet:
	@out=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "gofmt would change:"; echo "$$out"; exit 1; fi
	$(GO) vet $(PKGS)
	cd conformance/govmomi && $(GO) vet ./...

staticcheck: $(BIN)/staticcheck
	$(BIN)/staticcheck $(PKGS)
	cd conformance/govmomi && ../../$(BIN)/staticcheck ./...

$(BIN)/staticcheck: tools/go.mod tools/go.sum
	cd tools && $(GO) build -o ../$(BIN)/staticcheck honnef.co/go/tools/cmd/staticcheck

cross: ## 1 min: the other systems compile
	GOOS=darwin GOARCH=arm64 $(GO) build $(PKGS)
	GOOS=windows GOARCH=amd64 $(GO) build $(PKGS)

cross-tests: ## 3 min: their tests too
	GOOS=darwin GOARCH=arm64 $(GO) vet $(PKGS)
	GOOS=windows GOARCH=amd64 $(GO) vet $(PKGS)

bench: bench-vcenter ## 5 min
	$(GO) test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) $$($(GO) list $(PKGS) | grep -v /csilab/bench$$)

bench-vcenter: ## 2 min: beside stock vcsim, in the same run (docs/benchmarks.md)
	$(GO) test -run TestFill -v -bench . -benchtime $(BENCHTIME) -timeout 10m ./bench

conformance: ## 2 min: VMware's own CNS test, unchanged, against csilab serve
	cd conformance/govmomi && $(GO) test -count=1 -timeout 5m ./...

soak-vcenter: ## 11 min: the long form of what is in make test for a minute (SOAK=2m for two)
	CSILAB_SOAK=$(or $(SOAK),10m) $(GO) test -count=1 -v -run TestSoak -timeout 20m ./sim/vcenter/soak

mutants: ## 60 min: deliberately wrong drivers and simulators, and who tells them (docs/mutants.md)
	$(GO) run ./mutants -page docs/mutants.md

soak: ## 15 min: 20 seeds of two virtual hours
	$(GO) run ./cmd/csilab soak --seeds 20 --duration 2h

soak-short: ## 1 min
	$(GO) run ./cmd/csilab soak --seeds 4 --duration 1h

mutants-incidents: ## 3 min: each scenario of a public bug turns red under its mutation (docs/incidents.md)
	CSILAB_MUTANTS=incident $(GO) test -count=1 -timeout 10m -run TestMutants ./scenarios

fuzz: ## 5 min: each fuzz target for FUZZTIME
	./.ci/fuzz $(or $(FUZZTIME),10s)

clean:
	rm -rf $(BIN)
