# `make` or `make help` lists the targets.
SHELL := /bin/sh
GO ?= go
BUF := $(GO) tool -modfile=tools/go.mod buf
LINT := $(GO) tool -modfile=tools/lint/go.mod golangci-lint
VULN := $(GO) tool -modfile=tools/vuln/go.mod govulncheck
HELM := $(GO) tool -modfile=tools/helm/go.mod helm
NFPM := $(GO) tool -modfile=tools/nfpm/go.mod nfpm
GORELEASER := CGO_ENABLED=0 $(GO) tool -modfile=tools/goreleaser/go.mod goreleaser
COSIGN := CGO_ENABLED=0 $(GO) tool -modfile=tools/cosign/go.mod cosign
VERSION_OF := sed -n 's/^const Version = "\(.*\)"$$/\1/p' cmd/db-controller/cli/version.go
BIN := bin/db-controller
COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help build fips demo adoption-proof test test-loaded test-postgresql test-short campaign mutants bench fuzz recordings scan-schemas generate lint verify vulnerabilities sbom hostile clusters browser docs packages upgrade release release-ready release-files postgresql languages orms clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/db-controller
	CGO_ENABLED=0 $(COMPILE) build -trimpath -ldflags "-X github.com/db-controller/db-controller/cmd/db-controller/cli.commit=$(COMMIT)" -o $(BIN) ./cmd/db-controller

fips: ## build bin/db-controller-fips, whose cryptography is the certified FIPS 140-3 module of Go
	GOFIPS140=certified CGO_ENABLED=0 $(COMPILE) build -trimpath -ldflags "-X github.com/db-controller/db-controller/cmd/db-controller/cli.commit=$(COMMIT)" -o $(BIN)-fips ./cmd/db-controller
	GODEBUG=fips140=only $(BIN)-fips version

demo: postgresql build ## four deployments on real PostgreSQL, a scenario across regions; then tables that applications already have
	$(BIN) dev --scenario demo
	$(BIN) dev --scenario adopt

adoption-proof: postgresql orms build ## applications in Django, SQLAlchemy and GORM, unchanged: scan, attach, their own flows under faults, async and strict, detach; two minutes
	DBCONTROLLER_ADOPTION_PROOF=1 $(GO) test -count=1 -run 'TestADjangoApplication|TestApplicationsOfOtherMappers' -v ./test

# The compiler needs a quarter less processor time when it collects its garbage later.
COMPILE = GOGC=400 $(GO)

test: postgresql languages build ## every test; what has many goroutines with the race detector
	CGO_ENABLED=0 $(COMPILE) build -trimpath ./... # once, for all the groups of tests that start together
	@sh test/run.sh

test-postgresql: ## make test on another major version of PostgreSQL: VERSION=17 of the system's packages, or PGBIN, the folder of its programs
	@bin=$${PGBIN:-/usr/lib/postgresql/$(VERSION)/bin}; \
	[ -x "$$bin/postgres" ] || { echo "there is no $$bin/postgres: install the package postgresql-$(VERSION), or name the folder by PGBIN"; exit 1; }; \
	"$$bin/postgres" --version && PATH="$$bin:$$PATH" $(MAKE) test

test-loaded: postgresql languages build ## make test RUNS (default 10) times beside LOOPS (default 16) busy loops; hours
	@sh test/loaded.sh

test-short: postgresql ## the tests without whole processes
	@sh test/run.sh -short

campaign: postgresql ## SEEDS (default 100) campaigns of random operations and faults against native keys; hours
	DBCONTROLLER_FLEET_RESOURCES=20000 $(GO) test -run TestFleetTearDownOfAProject -v -count=1 -timeout 1h ./test
	DBCONTROLLER_TEST_HOLDERS=1000000 $(GO) test -run TestVeryManyHoldersWithKills -v -count=1 -timeout 1h ./test
	$(GO) test -run TestTheProtocol -v -count=1 -timeout 1h ./test/model -rapid.checks=1000000
	DBCONTROLLER_TEST_LONG=1 $(GO) test -v -count=1 -timeout 2h ./schema/shadow ./envregistry ./test
	DBCONTROLLER_CAMPAIGN_SEEDS=$${SEEDS:-100} $(GO) test -run Campaign -v -count=1 -timeout 24h ./test/campaign

mutants: postgresql ## play campaigns against planted mistakes, and write docs/mutants.md; about an hour
	DBCONTROLLER_MUTANTS=20 $(GO) test -run TestMutantsAreCaught -v -count=1 -timeout 24h ./test/campaign
	DBCONTROLLER_MUTANTS=1 $(GO) test -run TestMistakesInAttachedTablesAreCaught -v -count=1 -timeout 24h ./test/campaign/attached

bench: postgresql build ## measure beside native foreign keys; JSON lines, then a table
	$(GO) run ./test/bench
	$(GO) test -run '^$$' -bench . -benchmem ./constraint/cache ./schema/service
	$(GO) test -run "^$$" -bench . -benchtime 60x -count 5 ./schema/shadow

recordings: postgresql build ## the terminal recordings of the documents, with termtosvg
	bash docs/images/recordings/record.sh

fuzz: postgresql ## every fuzz target for FUZZTIME (default 30s) each; failures are kept in testdata/fuzz
	@set -e; for package in $$($(GO) list ./...); do \
	  for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
	    echo "$$package $$target"; \
	    $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $${FUZZTIME:-30s} -parallel 2 $$package; \
	  done; \
	done

scan-schemas: postgresql ## guess the dropped keys of schemas that Debian's packages ship; downloads them, and installs nothing
	@mkdir -p bin/schemas && cd bin/schemas && apt-get download zabbix-server-pgsql kea-admin roundcube-core pdns-backend-pgsql ejabberd && \
	  for package in *.deb; do dpkg-deb -x $$package .; done
	DBCONTROLLER_SCAN_SCHEMAS=$(CURDIR)/bin/schemas $(GO) test -count=1 -run TestTheKeysOfRealSchemasAreGuessed -v ./internal/scan

generate: ## generate code from .proto files, and documents from code
	$(BUF) generate
	$(GO) test -count=1 -run TestTheTableOfReasonsIsThatOfTheCode ./schema/service/outcome -write
	$(GO) test -count=1 -run TestTheReference ./cmd/db-controller -write
	$(GO) test -count=1 -run TestNothingBreaksTheWire ./test -write
	$(GO) test -count=1 -run 'TestASingleDeleteTakesFewRoundTrips|TestAReferenceElsewhereIsWrittenInFewRoundTrips' ./schema/shadow -write

lint: ## go vet, golangci-lint, buf lint
	$(GO) vet ./...
	cd examples/booking && GOWORK=off go vet ./...
	cd test/adoption/gorm && GOWORK=off go vet ./...
	$(LINT) run ./...
	$(BUF) lint

verify: lint vulnerabilities ## what a reviewer wants to know: linters, vulnerabilities, generated code and modules are current, nothing breaks the wire
	$(BUF) generate
	$(GO) mod tidy
	git diff --exit-code -- schema/schemapb go.mod go.sum
	$(BUF) breaking --against ".git#ref=$$(grep -v '^#' test/testdata/previous-release)"

GOVULNDB ?= https://vuln.go.dev
vulnerabilities: ## known vulnerabilities in called code, by the database GOVULNDB (a URL, a copy as file:///…, or off)
	@if [ "$(GOVULNDB)" = off ]; then echo "vulnerabilities: not looked for: GOVULNDB=off"; else \
	  $(VULN) -db "$(GOVULNDB)" ./... || { echo "vulnerabilities: see above; if $(GOVULNDB) cannot be reached, set GOVULNDB to a copy of it, or to off"; exit 1; }; fi

sbom: build ## write bin/sbom.json, the bill of materials of the binary (CycloneDX)
	cd tools && $(GO) run ./sbom ../$(BIN) > ../bin/sbom.json

CHART := deploy/helm/db-controller
RENDER = $(HELM) template --kube-version 1.30 --namespace db-controller
packages: build ## check the Helm chart, render its examples, and make bin/packages (deb and rpm); compiles Helm and nfpm, minutes
	for values in deploy/helm/example.yaml deploy/helm/two-clusters/us-west2.yaml deploy/helm/two-clusters/eastus2.yaml; do \
	  $(HELM) lint --strict $(CHART) -f $$values || exit 1; \
	done
	$(RENDER) eu $(CHART) -f deploy/helm/example.yaml > deploy/helm/example.rendered.yaml
	$(RENDER) eu $(CHART) -f deploy/helm/example.yaml --set prometheusRule.enabled=true --show-only templates/monitoring.yaml > bin/monitoring.rendered.yaml
	for region in us-west2 eastus2; do \
	  $(RENDER) db-controller $(CHART) -f deploy/helm/two-clusters/$$region.yaml > deploy/helm/two-clusters/$$region.rendered.yaml || exit 1; \
	done
	cd tools/helm && $(GO) run ./check $(CURDIR)/bin/monitoring.rendered.yaml $(CURDIR)/deploy/helm/*.rendered.yaml $(CURDIR)/deploy/helm/two-clusters/*.rendered.yaml
	$(GO) test -count=1 -run TestTheChartIsRendered ./cmd/db-controller -write
	$(GO) test -count=1 -run TestTheFilesOfPackagesExist ./cmd/db-controller -files $(CURDIR)/bin/packages/files
	for format in deb rpm; do \
	  VERSION=$$($(VERSION_OF)) ARCH=$$($(GO) env GOARCH) $(NFPM) package -f deploy/packages/nfpm.yaml -p $$format -t bin/packages || exit 1; \
	done
	$(GO) test -count=1 -run 'Chart|Clusters|Compose|Units|Image' ./cmd/db-controller

browser: ## every page of the console in a real browser; pictures in bin/pictures
	deploy/install-chromium.sh
	mkdir -p bin/pictures
	$(GO) test -count=1 ./internal/console -artifacts -outputdir $(CURDIR)/bin/pictures

docs: ## build the documentation site into bin/docs, which loads nothing from other hosts
	deploy/install-mkdocs.sh
	rm -rf bin/docs bin/docs-src && mkdir -p bin/docs-src
	ln -s $(CURDIR)/docs $(addprefix $(CURDIR)/,$(wildcard *.md)) $(CURDIR)/tools/docs/site.css bin/docs-src
	PYTHONDONTWRITEBYTECODE=1 mkdocs build --strict

hostile: postgresql build ## the attacks that docs/attacks.md names; minutes
	DBCONTROLLER_TEST_HOSTILE=1 $(GO) test -count=1 -timeout 40m -run "^($$(grep -oE '`(Test|Fuzz)[A-Za-z0-9_]+`' docs/attacks.md | tr -d '`' | sort -u | paste -sd '|' -))$$" ./...

clusters: postgresql build ## beside Patroni with etcd, HAProxy, PgBouncer, pgBackRest and pg_repack: failovers under load, restores; minutes
	sh deploy/install-clusters.sh
	DBCONTROLLER_TEST_CLUSTERS=1 $(GO) test -count=1 -timeout 40m -run '^TestClusters' -v ./test/clusters

upgrade: postgresql ## replace processes of the previous release (the file test/testdata/previous-release, or PREVIOUS) under load; a minute
	@set -e; previous=$${PREVIOUS:-$$(grep -v '^#' test/testdata/previous-release)}; \
	rm -rf bin/previous && git worktree prune && git worktree add -f --detach bin/previous $$previous && \
	(cd bin/previous && $(GO) build -buildvcs=false -o ../db-controller-previous ./cmd/db-controller) && git worktree remove --force bin/previous; \
	DBCONTROLLER_TEST_PREVIOUS=$$PWD/bin/db-controller-previous $(GO) test -count=1 -run TestARollingUpgradeUnderLoad -v ./test

# KEY is a file with a private key of cosign, or the URL of one in a service of keys.
release: release-ready ## at a tag: verify, fuzz for ten minutes a target, upgrade, then release-files; KEY is the key that signs; hours
	$(MAKE) verify
	FUZZTIME=10m $(MAKE) fuzz
	$(MAKE) upgrade
	$(MAKE) release-ready
	$(MAKE) release-files SNAPSHOT=

release-ready: # says what a release lacks
	@[ -z "$$(git status --porcelain)" ] || { echo "the tree has changes that are not in a commit: commit or remove them, then make the release"; exit 1; }
	@git describe --tags --exact-match --match "v$$($(VERSION_OF))" HEAD >/dev/null 2>&1 || { echo "the commit lacks the tag of its version, v$$($(VERSION_OF)): set it, then make the release"; exit 1; }
	@case "$(KEY)" in *://*) ;; *) [ -r "$(KEY)" ] ;; esac || { echo "there is no key to sign with: give KEY=FILE, or KEY=URL, of a private key of cosign"; exit 1; }

SNAPSHOT ?= --snapshot
release-files: ## the files of a release in dist, of any commit: archives, packages, bills of materials, checksums, provenance; signed, if there is a KEY; compiles goreleaser and cosign, half an hour
	KEY="$(KEY)" $(GORELEASER) release --clean $(SNAPSHOT) --skip=publish$(if $(KEY),,$(comma)sign)
	cd tools && $(GO) run ./provenance ../dist > ../dist/provenance.json
	$(if $(KEY),$(COSIGN) attest-blob --yes --key="$(KEY)" --signing-config=tools/cosign/offline.json --statement dist/provenance.json --bundle dist/provenance.sigstore.json)
comma := ,

postgresql: # installs the server's programs where they are missing and it can
	@sh deploy/install-postgresql.sh

languages: # installs gRPC for Python, and TypeScript, where they are missing and it can
	@sh deploy/install-languages.sh

orms: # installs Django, SQLAlchemy and psycopg for Debian's Python where they are missing and it can
	@sh deploy/install-orms.sh

clean: ## remove what was built
	rm -rf bin
