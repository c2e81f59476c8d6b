package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/cookiejar"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	"github.com/db-controller/db-controller/test/stub"
)

type quiet struct {
	adminv1.UnimplementedAdminServiceServer
}

func (quiet) Status(context.Context, *adminv1.StatusRequest) (*adminv1.StatusResponse, error) {
	return &adminv1.StatusResponse{Version: "v7"}, nil
}

// console prints the address of a page that shows the deployments, and ends with the command.
func TestTheConsoleIsServedUntilTheCommandEnds(t *testing.T) {
	t.Parallel()
	file := stub.New(t, stub.Services{Admin: quiet{}}).Context
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, to := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"--context", file, "console"}, strings.NewReader(""), to, io.Discard)
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	go func() { _, _ = io.Copy(io.Discard, out) }()
	address := regexp.MustCompile(`http://127\.0\.0\.1:\d+/\?key=\S+`).FindString(line)
	require.NotEmpty(t, address, line)

	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	browser := &http.Client{Jar: jar}
	page, err := browser.Get(address) //nolint:noctx // a test
	require.NoError(t, err)
	require.NoError(t, page.Body.Close())
	require.Equal(t, http.StatusOK, page.StatusCode)
	events, err := browser.Get(page.Request.URL.String() + "api/events") //nolint:noctx // a test
	require.NoError(t, err)
	defer func() { _ = events.Body.Close() }()
	lines := bufio.NewReader(events.Body)
	for shown := ""; !strings.Contains(shown, `"version":"v7"`); {
		shown, err = lines.ReadString('\n')
		require.NoError(t, err)
	}
	cancel()
	require.Zero(t, <-code, "an open page does not keep the command")

	got := command(t, "--context", file, "console", "--listen", "0.0.0.0:8080")
	require.Equal(t, cli.WrongUsage, got.code)
	require.Contains(t, got.errOut, "want a loopback address")
}
