package main

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
	"github.com/db-controller/db-controller/test/stub"
)

// lagged is a deployment with dangling references: two that cascade and one that blocks.
type lagged struct {
	adminv1.UnimplementedAdminServiceServer
	asked []*adminv1.VerifyRequest
}

func (l *lagged) Verify(req *adminv1.VerifyRequest, stream grpc.ServerStreamingServer[adminv1.VerifyResponse]) error {
	l.asked = append(l.asked, req)
	act := req.GetDangling() == adminv1.VerifyRequest_DANGLING_ACT
	for _, behaviour := range []string{"CASCADE_DELETE", "CASCADE_DELETE", "BLOCK"} {
		acted := act && behaviour != "BLOCK"
		d := &adminv1.VerifyResponse_Difference{
			Kind: "TARGET_GONE", Behaviour: behaviour, Dangling: true,
			ActedUpon: acted, Repaired: acted, Remedy: "the remedy",
		}
		if err := stream.Send(&adminv1.VerifyResponse{Event: &adminv1.VerifyResponse_Difference_{
			Difference: d,
		}}); err != nil {
			return err
		}
	}
	p := &adminv1.VerifyResponse_Progress{Done: true, Differences: 3}
	if act {
		p.Repaired, p.ActedUpon = 2, 2
	}
	return stream.Send(&adminv1.VerifyResponse{Event: &adminv1.VerifyResponse_Progress_{Progress: p}})
}

// The numbers are printed first; without --yes nothing is acted upon.
func TestDanglingReferencesAreCountedBeforeTheyAreActedUpon(t *testing.T) {
	t.Parallel()
	there := &lagged{}
	at := []string{
		"--context",
		stub.New(t, stub.Services{Admin: there, Registry: listing{}, Described: "eastus2"}).Context,
	}
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"--dangling=act"}, "--dangling=act is a repair: add --repair"},
		{[]string{"--repair", "--dangling=act", "--yes"}, "--reason is missing"},
		{[]string{"--repair", "--dangling=drop"}, "--dangling drop: want report or act"},
	} {
		got := command(t, append(append(at, "verify"), c.args...)...)
		require.Equal(t, cli.WrongUsage, got.code)
		require.Contains(t, got.errOut, c.says)
	}
	require.Empty(t, there.asked)

	got := command(t, append(slices.Clone(at), "verify")...)
	require.Equal(t,
		"error: 3 differences left; 3 references without a target: a person decides about each, or about all (verify --repair --dangling=act)\n", got.errOut,
		"no repair is certain")
	there.asked = nil
	all := append(slices.Clone(at), "verify", "--repair", "--dangling=act", "--reason", "lagged")
	got = command(t, all...)
	require.Equal(t, cli.WrongUsage, got.code)
	require.Contains(t, got.out, "2 dangling references with CASCADE_DELETE: holders are deleted\n")
	require.Contains(t, got.out, "1 dangling reference with BLOCK: left for a person to decide\n")
	require.Contains(t, got.errOut, "2 dangling references would act, which cannot be undone: add --yes to continue")
	require.Len(t, there.asked, 1)
	require.False(t, there.asked[0].GetRepair(), "it only counts")

	got = command(t, append(all, "--yes")...)
	require.Equal(t, 1, got.code, "the one that blocks remains")
	require.Contains(t, got.out, "3 differences, 2 repaired\n  2 dangling references acted upon\n")
	require.Contains(t, got.errOut, "1 difference left")
	require.Len(t, there.asked, 3)
	require.Equal(t, "lagged", there.asked[2].GetReason())
	require.Equal(t, adminv1.VerifyRequest_DANGLING_ACT, there.asked[2].GetDangling())
}
