# The commands of the project. Everything needs Go and nothing else, unless it
# says so.
.DEFAULT_GOAL := help
GO ?= go
FUZZTIME ?= 10s
SIM_SEEDS ?= 10000
# Another part of the seeds each day, unless one is named.
SIM_FIRST ?= $(shell date +%Y%m%d)00000
WAITING ?= 10000

.PHONY: help
help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

.PHONY: build
build: ## build every command into bin/
	$(GO) build -o bin/ ./cmd/...

.PHONY: verify
verify: ## formatting, vet, staticcheck, tidy
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo 'run: gofmt -w .'; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) mod tidy -diff

.PHONY: test
test: ## all tests
	$(GO) test ./...

.PHONY: race
race: ## the tests of everything concurrent with the race detector (needs a C compiler)
	$(GO) test -race $$(sh ./.ci/raced)

.PHONY: deploy-check
deploy-check: ## check what is in deploy/: the Helm chart and the like (NATS_CHART names a copy of the chart of NATS)
	cd deploy/check && $(GO) vet ./... && $(GO) mod tidy -diff && $(GO) test -count=1 ./...

.PHONY: release
release: ## build and publish what the tag of this commit is (goreleaser, syft); the notes are those of CHANGELOG.md
	goreleaser release --clean --release-notes CHANGELOG.md

.PHONY: golden
golden: ## write the golden files of the tests anew
	$(GO) test -count=1 $$(git grep -l 'flag.Bool("update"' -- '*_test.go' | xargs -n1 dirname | sort -u | sed 's|^|./|') -update

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME each
	@GO=$(GO) FUZZTIME=$(FUZZTIME) sh ./.ci/fuzz

.PHONY: sim
sim: ## SIM_SEEDS simulated installations from seed SIM_FIRST on; a failing one is a file that can be played again
	@echo "seeds $(SIM_FIRST) and the $(SIM_SEEDS) from there on"
	$(GO) test ./sim -count=1 -timeout 30m -v -run 'TestSeeds$$' -sim.seeds $(SIM_SEEDS) -sim.first $(SIM_FIRST)

.PHONY: waiting
waiting: ## memory and latency with WAITING runs that wait for a human (Linux)
	MOOREBUS_WAITING=$(WAITING) $(GO) test ./e2e -count=1 -timeout 10m -v -run 'TestWaiting$$'

.PHONY: ollama
ollama: ## the tests against a real Ollama, which is built once (Debian, a C++ compiler, 6 minutes)
	sh ./e2e/ollama/build.sh
	$(GO) test ./e2e/ollama -count=1 -v

.PHONY: bench
bench: ## every benchmark that is not long: see docs/explanation/performance.md
	$(GO) run ./bench all

.PHONY: bench-peers
bench-peers: ## other systems beside this one, in one sitting (needs npm and PostgreSQL)
	bash ./bench/peers/run

RUNS ?= 300
SEED ?= 0

.PHONY: chaos
chaos: ## carry RUNS runs while processes are killed, and audit the log (SEED repeats one)
	$(GO) run ./chaos --runs $(RUNS) --seed $(SEED)

.PHONY: chaos-cluster
chaos-cluster: ## the same around three servers, whose leaders are killed
	$(GO) run ./chaos --cluster --runs $(RUNS) --seed $(SEED)

.PHONY: otlp
otlp: ## send spans to the OpenTelemetry Collector's receiver, a module of its own
	cd e2e/otlp && $(GO) test ./... -count=1

.PHONY: powerloss
powerloss: ## lose the power at 1,000 moments of a recorded load, and look for what was acknowledged (Linux, strace)
	$(GO) run ./bench powerloss --images 1000 --runs 90 --seed $(SEED) --fsync group

.PHONY: up
up: build ## start nats-server, gateway, planner, actor and observer locally
	sh ./deploy/local.sh up

.PHONY: down
down: ## stop what `make up` started
	sh ./deploy/local.sh down
