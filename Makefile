# Every target does its own set-up. On a fresh Debian machine they need only Go and git (and make), as root or with sudo.

GO      ?= go
# "work" is every package of every module of go.work.
ALL     := work
TIMEOUT ?= 20m
# TESTFLAGS go to go test as they are: make test TESTFLAGS='-run Handover -count=3'
TESTFLAGS ?=
LINT    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.PHONY: help demo test test-short race bench lint fmt tidy check

help: ## Show this text
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## Run the main job on a temporary SQLite file: three processes, one killed, one paused, one stale write refused
	$(GO) run ./cmd/tenure demo

test: ## Run all tests, against real servers, which are installed and started on free loopback ports; a skipped test fails
	$(GO) run ./dev/servers -- $(GO) run ./dev/gotest -p 1 -parallel 6 -timeout $(TIMEOUT) $(TESTFLAGS) $(ALL)

test-short: ## Run the tests that need Go alone, on any system
	$(GO) test -short -timeout $(TIMEOUT) $(ALL)

race: ## Run the tests of the core, the contract and the SQL mechanism with the race detector
	$(GO) test -race -timeout $(TIMEOUT) . ./driver/... ./store/memory/... ./store/sqlstore/... -simulation.seeds 200

bench: ## Measure what the documentation claims, each ratio within one run
	$(GO) test -run '^$$' -bench 'Check|TimeNow' -count 3 .
	$(GO) run ./dev/servers -- $(GO) test -p 1 -timeout 40m -run '^$$' -bench . ./bench/... ./fence/fencepgx/...

lint: ## Run golangci-lint, built once into the Go build cache
	for module in $$($(GO) list -m -f '{{.Dir}}'); do (cd $$module && $(GO) run $(LINT) run ./...) || exit 1; done

fmt: ## Format the code
	gofmt -w .

tidy: ## Tidy every module
	$(GO) run ./dev/modules tidy

check: ## Build and vet every module as its users do, outside the workspace
	$(GO) run ./dev/modules check
