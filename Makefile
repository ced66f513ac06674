# make help lists the targets. As root, scripts/setup installs missing packages; for other
# users it prints the command.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

export CGO_ENABLED := 0
# For every build, so that nothing is compiled twice.
export GOFLAGS += -trimpath

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT  ?= $(shell git rev-parse --verify -q HEAD 2>/dev/null || echo unknown)
CLI     := github.com/glovebox-dev/glovebox/internal/cli
LDFLAGS := -s -w -X $(CLI).version=$(VERSION) -X $(CLI).commit=$(COMMIT)
GO      ?= go

DEMO_OUT ?= demo-out
FUZZTIME ?= 30s
BENCHFLAGS ?=
CONFORMANCEFLAGS ?=
SUITE ?= bookworm
KUBEFLAGS ?=
KUBEBENCHFLAGS ?=
FOREIGNFLAGS ?=
CHAOSFLAGS ?= -ops 100000
SOAKFLAGS ?=

.PHONY: build
build: generate-guest ## bin/glovebox
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/glovebox ./cmd/glovebox

.PHONY: generate-guest
generate-guest: ## the agent that runs in boxes; embedded into the binary
	$(GO) generate ./internal/guest/embed

.PHONY: setup
setup: ## install missing packages, or print the command
	scripts/setup

.PHONY: demo
demo: setup build ## a real analysis in a real box through a real MCP client
	$(GO) run ./examples/demo -glovebox bin/glovebox -out $(DEMO_OUT)

.PHONY: test
test: ## all tests, as root and as an ordinary user
	scripts/setup test
	scripts/test

.PHONY: test-vm
test-vm: build ## the systemd unit in a virtual machine of Debian; as root, needs no KVM (SUITE=trixie)
	scripts/setup vm
	scripts/test-vm $(SUITE)

.PHONY: test-microsandbox
test-microsandbox: build ## the microsandbox engine with the real msb, in a virtual machine; as root, needs no KVM (MSBFLAGS='-run TestConformance/contract')
	scripts/setup vm
	scripts/test-microsandbox $(MSBFLAGS)

.PHONY: test-kube
test-kube: ## the Kubernetes engine on a real cluster of one node, which it starts and stops; as root (KUBEFLAGS='-run TestConformance/stream')
	scripts/setup kube
	scripts/test-kube $(KUBEFLAGS)

.PHONY: test-foreign
test-foreign: ## other projects' test suites in a box and on this machine, compared (FOREIGNFLAGS='-only numpy')
	scripts/setup foreign
	$(MAKE) build
	$(GO) run ./e2e/foreign $(FOREIGNFLAGS)

.PHONY: attack
attack: build ## every attack on this machine, as root and as an ordinary user (ATTACKFLAGS='--only storm')
	scripts/attack $(ATTACKFLAGS)

.PHONY: chaos
chaos: generate-guest ## 100,000 operations on boxes while sentries, disk and agents fail (CHAOSFLAGS='-seed 7 -ops 2000')
	$(GO) test ./internal/chaos -run '^TestChaos$$' -count 1 -v -timeout 24h -args -for 0 $(CHAOSFLAGS)

.PHONY: soak
soak: build ## 30 minutes of work by several owners while sentries and the server are killed (SOAKFLAGS='-for 2m')
	$(GO) run ./e2e/soak $(SOAKFLAGS)

.PHONY: conformance
conformance: build ## the official conformance suite of MCP (CONFORMANCEFLAGS='-scenario tasks-lifecycle')
	scripts/conformance $(CONFORMANCEFLAGS)

.PHONY: check
check: generate-guest ## formatting, static checks, known vulnerabilities, generated files, races
	scripts/check

.PHONY: bench
bench: ## figures beside those of peers, as a table and JSON (BENCHFLAGS='-quick -only warm')
	scripts/setup bench
	$(MAKE) build
	$(GO) run ./bench $(BENCHFLAGS)

.PHONY: bench-compare
bench-compare: ## compare the last figures with the stored ones; fails if a ratio is worse
	$(GO) run ./bench -compare

.PHONY: bench-store
bench-store: ## store the last figures, in place of those before, to compare with
	$(GO) run ./bench -store

.PHONY: bench-kube
bench-kube: ## how the Kubernetes engine scales, simulated without a cluster (KUBEBENCHFLAGS='-sizes 1000')
	$(GO) run ./internal/engine/kube/kubesim/scale $(KUBEBENCHFLAGS)

.PHONY: cross
cross: generate-guest ## the other platforms compile
	GLOVEBOX_GUEST_ARCH=arm64 $(GO) generate ./internal/guest/embed
	GOOS=linux GOARCH=arm64 $(GO) build -o /dev/null ./cmd/glovebox
	rm -f internal/guest/embed/bin/guest-linux-arm64
	GOOS=darwin GOARCH=arm64 $(GO) build -o /dev/null ./cmd/glovebox
	GOOS=windows GOARCH=amd64 $(GO) build -o /dev/null ./cmd/glovebox
	GOOS=darwin GOARCH=arm64 $(GO) vet ./internal/cli ./internal/config ./bench/... ./e2e/...
	GOOS=windows GOARCH=amd64 $(GO) vet ./internal/cli ./internal/config

.PHONY: ahead
ahead: ## compile dependencies of cross and check during the tests
	scripts/ahead

.PHONY: fuzz
fuzz: generate-guest ## every fuzz target for FUZZTIME
	scripts/fuzz $(FUZZTIME)

.PHONY: update-gvisor
update-gvisor: ## update to the newest gVisor that builds with go build
	$(GO) get gvisor.dev/gvisor@go
	$(GO) mod tidy

.PHONY: clean
clean:
	rm -rf bin demo-out

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | sort | expand -t 16
