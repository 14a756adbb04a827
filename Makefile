# Needs Go, make and git; a C compiler for the race detector; openssl for "demo",
# "up" and "e2e"; protoc for "proto" and "lint"; Node.js and Python for "interop".

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build

golangci_version := v2.15.0
golangci := bin/tools/golangci-lint
node_modules := test/interop/node_modules
venv := test/interop/venv

# Replicas with real elections: their tests mostly wait, and need a machine that does
# nothing else.
timed := -e /cluster$$ -e /cluster/peer$$ -e /test/ensemble$$

# The race detector needs a C compiler.
race := $(if $(shell command -v $${CC:-gcc}),-race)

# What "slim-cp version" says; without git it is what the Go tool knows.
version = $(shell git describe --tags --always --dirty 2>/dev/null)

.PHONY: build test e2e attack kills kills-large chaos interop node_modules venv lint bench bench-long fuzz demo up proto clean

build: ## bin/slim-cp, bin/slimctl and bin/slim-node
	go build -ldflags '-X main.version=$(version)' -o bin/ ./cmd/slim-cp ./cmd/slimctl ./cmd/slim-node

# The model test runs in full only without the race detector.
test: ## all tests but those of running binaries
	$(if $(race),,@echo "no C compiler: testing without the race detector")
	go test $(race) $$(go list ./... | grep -v $(timed))
	go test -p 2 $(race) $$(go list ./... | grep $(timed))
	$(if $(race),go test -run '^TestModel$$' ./reconciler)

e2e: ## the built binaries as processes
	go test -count=1 -timeout 10m -tags e2e ./test/e2e

kills: ## fifty faults of replicas while 40 nodes announce names: no link may change its id
	go test -count=1 -timeout 60m -tags e2e -v -run '^TestKilledProcessesChangeNoLinkID$$' ./test/e2e -args -kills 50 -kills.groups 20 -kills.nodes 2 -kills.names 5

kills-large: ## the leader of 2,000 nodes with 10,000 names dies ten times: no node and no link may be lost
	go test -count=1 -timeout 60m -tags e2e -v -run '^TestKilledLeaderLosesNoNode$$' ./test/e2e -args -kills 10 -kills.groups 100 -kills.nodes 20 -kills.names 100

chaos: ## five replicas under faults, ten minutes: CHAOS="-chaos.time 90s -chaos.seed N"
	go test -count=1 -timeout 90m -tags chaos -v ./test/chaos -args $(CHAOS)

attack: ## what strangers may do to a replica's port, 20 s each: ATTACK="-attack.time 60s"
	go test -count=1 -timeout 20m -tags e2e -v -run '^TestAttacks' ./test/e2e -args -attack.time 20s $(ATTACK)

# Nodes and applications are of both releases in turn, then of the newer one alone.
interop: node_modules venv ## real SLIM nodes and applications; those of one replica again on followers
	go test -count=1 -timeout 10m -parallel 4 -tags interop ./test/interop -args -releases 2,3
	go test -count=1 -timeout 10m -parallel 4 -tags interop -run '^TestScenario(0|1|2[0-2])' ./test/interop -args -followers -releases 3

node_modules: $(node_modules)/.package-lock.json

# "npm ci" does not work: upstream lists optional packages that are not published.
$(node_modules)/.package-lock.json: test/interop/package.json
	cd test/interop && npm install --no-progress
	touch $@

venv: $(venv)/.installed

$(venv)/.installed: test/interop/requirements.txt
	python3 -m venv $(venv)
	$(venv)/bin/pip install --disable-pip-version-check -r test/interop/requirements.txt
	touch $@

lint: $(golangci)
	go vet -tags e2e,interop,chaos ./...
	$(golangci) run ./...
	go run ./scripts/maporder ./fsm ./spt
	go mod tidy -diff
	scripts/proto.sh check

$(golangci):
	GOBIN=$(CURDIR)/bin/tools go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(golangci_version)

bench: ## time and memory of the hot paths
	go test -run '^$$' -bench . -benchmem -timeout 30m ./...

bench-long: ## ten minutes of full load with each of the timings: no election that nobody asked for
	go test -run '^$$' -bench SteadyLeadership -benchtime 1x -timeout 40m ./test/load -steady.time 10m

fuzz: ## every decoder of bytes from outside, 10 s each
	scripts/fuzz.sh 10s

demo: build ## three replicas and a simulated fleet: the leader is killed, a state restored
	scripts/demo.sh

up: build ## such a cluster with a fleet, until Ctrl-C
	scripts/up.sh

proto: ## generated code from the wire schemas
	scripts/proto.sh

clean:
	rm -rf bin $(node_modules) $(venv)
