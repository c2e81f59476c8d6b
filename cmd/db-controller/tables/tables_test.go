package tables

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/internal/scan"
	"github.com/db-controller/db-controller/internal/scan/report"
	"github.com/db-controller/db-controller/schema"
)

func TestScanChecksItsFlags(t *testing.T) {
	t.Parallel()
	there := filepath.Join(t.TempDir(), "there.yaml")
	require.NoError(t, os.WriteFile(there, nil, 0o600))
	for name, c := range map[string]struct {
		flags scanFlags
		files []string
		wrong string
	}{
		"right":       {scanFlags{dsns: []string{"shop=x"}, statementTimeout: time.Second}, nil, ""},
		"no database": {scanFlags{statementTimeout: time.Second}, nil, "missing: --dsn"},
		"negative rate": {
			scanFlags{dsns: []string{"shop=x"}, rate: -1, statementTimeout: time.Second},
			nil,
			"--rate -1",
		},
		"a short timeout": {
			scanFlags{dsns: []string{"shop=x"}, statementTimeout: time.Millisecond},
			nil,
			"want at least 100ms",
		},
		"a guess of a file": {
			scanFlags{dsns: []string{"shop=x"}, statementTimeout: time.Second, write: "new.yaml"},
			[]string{"old.yaml"},
			"old.yaml declares the references already",
		},
		"a file is not lost": {
			scanFlags{dsns: []string{"shop=x"}, statementTimeout: time.Second, write: there},
			nil,
			"the file exists",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := c.flags.check(c.files)
			if c.wrong == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.wrong)
			require.Equal(t, cli.WrongUsage, cli.ExitCode(err))
		})
	}
}

func TestDatabasesByTheirLabels(t *testing.T) {
	t.Parallel()
	declared := []*schema.Descriptor{descriptorOf("shop.example.com"), descriptorOf("iam.example.com")}
	for name, c := range map[string]struct {
		dsns     []string
		declared []*schema.Descriptor
		want     []scan.Database
		wrong    string
	}{
		"a guess": {
			[]string{"Shop_1=host=localhost"},
			nil,
			[]scan.Database{{Label: "Shop_1", DSN: "host=localhost", Service: "shop-1" + guessedDomain}},
			"",
		},
		"a declared one": {
			[]string{"shop=host=localhost"},
			declared,
			[]scan.Database{{Label: "shop", DSN: "host=localhost", Service: "shop.example.com"}},
			"",
		},
		"a region": {
			[]string{"shop/west=host=localhost"},
			declared,
			[]scan.Database{{Label: "shop/west", DSN: "host=localhost", Service: "shop.example.com", Region: "west"}},
			"",
		},
		"not declared": {[]string{"bank=host=localhost"}, declared, nil, "the file does not describe"},
		"no name":      {[]string{"postgres://secret@db/shop?x=1"}, nil, nil, "--dsn, number 1: want NAME=DSN"},
		"no string":    {[]string{"shop="}, nil, nil, "--dsn, number 1"},
		"a bad region": {[]string{"shop/WEST!=host=localhost"}, nil, nil, "--dsn shop/WEST!"},
		"twice": {
			[]string{"shop=host=localhost", "shop.example.com=host=localhost"},
			declared, nil,
			"name their regions",
		},
		"beside its region": {
			[]string{"shop=host=localhost", "shop/west=host=localhost"},
			declared, nil,
			"name their regions",
		},
		"without TLS": {
			[]string{"shop=postgres://db.example.com/shop?sslmode=disable"},
			nil, nil,
			"--postgres-plaintext",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := (&scanFlags{dsns: c.dsns}).databases(c.declared)
			if c.wrong == "" {
				require.NoError(t, err)
				require.Equal(t, c.want, got)
				return
			}
			require.ErrorContains(t, err, c.wrong)
			require.NotContains(t, err.Error(), "secret", "errors do not contain the connection string")
			require.Equal(t, cli.WrongUsage, cli.ExitCode(err))
		})
	}
}

func TestTheFirstLabelOfAServiceStandsForItWhenItIsTheOnlyOne(t *testing.T) {
	t.Parallel()
	one := []*schema.Descriptor{descriptorOf("shop.example.com"), descriptorOf("shop.example.com")}
	two := []*schema.Descriptor{one[0], descriptorOf("shop.other.com")}
	require.Equal(t, "shop.example.com", declaredService(one, "shop.guess", "shop"))
	require.Equal(t, "shop.guess", declaredService(two, "shop.guess", "shop"), "two have that label")
	require.Equal(t, "shop.other.com", declaredService(two, "shop.other.com", "shop.other.com"))
	require.Equal(t, "shop.third.com", declaredService(one, "shop.third.com", "shop.third.com"),
		"a full name stands for itself")
}

func TestTheVerdictOfAScan(t *testing.T) {
	t.Parallel()
	clean := report.Reference{State: report.Complete}
	partial := report.Reference{State: report.Partial}
	orphans := report.Reference{State: report.Complete, Orphans: report.Orphans{Rows: 3}}
	of := func(refs ...report.Reference) *report.Report { return &report.Report{References: refs} }
	require.NoError(t, (&scanFlags{}).verdict(t.Context(), of(clean, orphans)),
		"findings are the result, and no failure")
	require.NoError(t, (&scanFlags{strict: true}).verdict(t.Context(), of(clean)))
	err := (&scanFlags{strict: true}).verdict(t.Context(), of(clean, orphans))
	require.EqualError(t, err, "1 reference with something to do")
	require.Equal(t, cli.Findings, cli.ExitCode(err))
	require.EqualError(t, (&scanFlags{}).verdict(t.Context(), of(partial, clean)), "1 reference not scanned to the end")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.EqualError(t, (&scanFlags{}).verdict(ended, of(clean)), "interrupted: the report is partial")
}

func TestAReportIsForItsOwnerAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "report.html")
	require.NoError(t, create(path, []byte("first, long")))
	at, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), at.Mode().Perm())
	require.ErrorIs(t, create(path, []byte("second")), os.ErrExist)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "first, long", string(text))
}

func TestProgressIsToldAtTheEndOfATable(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	show := newProgress(&out)
	show(scan.Progress{Database: "shop", Table: "orders", Rows: 10, Estimate: 100})
	require.Empty(t, out.String(), "not at once")
	show(scan.Progress{Database: "shop", Table: "orders", Rows: 100, Estimate: 100, Orphans: 2, Done: true})
	require.Equal(t, "shop orders: 100 rows read, 2 orphans\n", out.String())
	out.Reset()
	show(scan.Progress{Database: "shop", Table: "notes", Rows: 1, Orphans: 1, Done: true})
	require.Equal(t, "shop notes: 1 row read, 1 orphan\n", out.String())
}

func TestAttachTakesTheNamedKinds(t *testing.T) {
	t.Parallel()
	require.True(t, (&attachFlags{}).wants("Order"), "all, when none is named")
	some := &attachFlags{kinds: []string{"Order", "Customer"}}
	require.True(t, some.wants("Order"))
	require.False(t, some.wants("Invoice"))
}

func descriptorOf(service string) *schema.Descriptor {
	return &schema.Descriptor{ServiceVersion: schema.ServiceVersion{Service: service}}
}
