package report_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/db-controller/db-controller/internal/scan/report"
)

const evil = "<script>alert('&\"1\")</script>\x1b[31m"

func hostile() *report.Report {
	at := report.Place{Database: "shop" + evil, Table: "public." + evil, Columns: []string{"c" + evil}}
	return &report.Report{
		Started: time.Unix(0, 0).UTC(), Ended: time.Unix(2, 0).UTC(), Guessed: true, Partial: evil,
		Databases: []report.Database{{Label: "shop" + evil, Service: "shop.example.com", Tables: 1, Rows: 1234567}},
		References: []report.Reference{{
			Holder: at, Targets: []report.Place{at, at}, Guess: evil, State: report.Partial, Reason: evil,
			Rows: 10, Kind: "k",
			Orphans: report.Orphans{
				Rows: 3, Targets: report.Number{N: 1},
				Samples: []report.Sample{{Key: []string{evil}, Value: []string{evil, "b"}}},
			},
			FanOut: report.FanOut{
				Targets: report.Number{N: 5, About: true}, Median: 1, P90: 2, P99: 3,
				Largest: []report.Holders{{Target: []string{evil}, Rows: report.Number{N: 9}}},
			},
			Advice: []report.Advice{{Text: evil, SQL: evil, Finding: true}},
		}},
		Cascades: []report.Cascade{{
			Target: at, Key: []string{evil},
			Steps: []report.Step{{Level: 1, Place: at, Rows: 2, More: true, Effect: report.Deleted, Reason: evil}},
		}},
		Notes: []string{evil},
	}
}

// The page is well-formed, names nothing outside of it, and shows names and values as text.
func TestThePageEscapesNamesAndValues(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	require.NoError(t, hostile().HTML(&b))
	page := b.String()
	require.NotContains(t, page, "<script")
	require.GreaterOrEqual(t, strings.Count(page, "&lt;script&gt;"), 12)
	for _, outside := range []string{"http:", "https:", "src=", "@import", "url(", "ZgotmplZ"} {
		require.NotContains(t, page, outside)
	}
	require.Contains(t, page, "prefers-color-scheme: dark")
	require.Contains(t, page, `name="viewport"`)
	_, err := html.Parse(strings.NewReader(page))
	require.NoError(t, err)
	d := xml.NewDecoder(strings.NewReader(strings.ReplaceAll(page, "\x1b", "")))
	for err == nil {
		_, err = d.Token()
	}
	require.ErrorIs(t, err, io.EOF)
}

// Names and values cannot control a terminal.
func TestTheTextEscapesNamesAndValues(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	require.NoError(t, hostile().Text(&b))
	require.NotContains(t, b.String(), "\x1b")
	require.Contains(t, b.String(), "3 rows of 10 refer to 1 target that does not exist")
	require.Contains(t, b.String(), "PARTIAL: ")
	require.Contains(t, b.String(), "1 database, 1 table, 1,234,567 rows read in 2s")
	require.Contains(t, b.String(), "2 rows or more of ")
}

func TestJSONIsReadable(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	r := hostile()
	require.NoError(t, r.JSON(&b))
	var back report.Report
	require.NoError(t, json.Unmarshal(b.Bytes(), &back))
	require.Equal(t, *r, back)
}
