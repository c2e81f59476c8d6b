# `make` or `make help` lists the targets.
SHELL := /bin/sh
GO ?= go
BUF := $(GO) tool -modfile=tools/go.mod buf
LINT := $(GO) tool -modfile=tools/lint/go.mod golangci-lint
BIN := bin/db-controller

.DEFAULT_GOAL := help
.PHONY: help build demo test test-short campaign mutants bench fuzz generate lint verify postgresql python image clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/db-controller
	CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN) ./cmd/db-controller

demo: postgresql build ## four deployments on real PostgreSQL, a scenario across regions
	$(BIN) dev --scenario demo

test: postgresql python image build ## every test, with the race detector
	$(GO) vet -race ./... # the tests need what it compiles
	$(GO) test -race -count=1 -timeout 40m ./...

test-short: postgresql ## the tests without long races and whole processes
	$(GO) test -short -count=1 ./...

campaign: postgresql ## SEEDS (default 100) campaigns of random operations and faults against native keys; hours
	DBCONTROLLER_TEST_HOLDERS=1000000 $(GO) test -run TestVeryManyHoldersWithKills -v -count=1 -timeout 1h ./test
	$(GO) test -run TestTheProtocol -v -count=1 -timeout 1h ./test/model -rapid.checks=1000000
	DBCONTROLLER_CAMPAIGN_SEEDS=$${SEEDS:-100} $(GO) test -run Campaign -v -count=1 -timeout 24h ./test/campaign

mutants: postgresql ## play campaigns against planted mistakes, and write docs/mutants.md; about an hour
	DBCONTROLLER_MUTANTS=20 $(GO) test -run TestMutantsAreCaught -v -count=1 -timeout 24h ./test/campaign

bench: postgresql build ## measure beside native foreign keys; JSON lines, then a table
	$(BIN) bench
	$(GO) test -run '^$$' -bench . -benchmem ./constraint/cache ./schema/service
	$(GO) test -run "^$$" -bench . -benchtime 60x -count 5 ./schema/shadow

fuzz: postgresql ## every fuzz target for FUZZTIME (default 30s) each; failures are kept in testdata/fuzz
	@set -e; for package in $$($(GO) list ./...); do \
	  for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
	    echo "$$package $$target"; \
	    $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $${FUZZTIME:-30s} -parallel 2 $$package; \
	  done; \
	done

generate: ## generate code from .proto files, and documents from code
	$(BUF) generate
	$(GO) test -count=1 -run TestTheTableOfReasonsIsThatOfTheCode ./schema/service/outcome -write

lint: ## go vet, golangci-lint, buf lint
	$(GO) vet ./...
	$(LINT) run ./...
	$(BUF) lint

verify: ## what a reviewer wants to know: generated code is current, modules are tidy, nothing breaks the wire
	$(BUF) generate
	$(GO) mod tidy
	git diff --exit-code -- schema/schemapb go.mod go.sum
	$(BUF) breaking --against '.git#branch=main'

postgresql: # installs the server's programs where they are missing and it can
	@sh deploy/install-postgresql.sh

python: # installs gRPC for Python where it is missing and it can
	@sh deploy/install-python-grpc.sh

image: # the tests' container image, where there is an engine and no registry
	@sh test/harness/image/build.sh

clean: ## remove what was built
	rm -rf bin
