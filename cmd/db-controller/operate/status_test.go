package operate

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
	adminv1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/admin/v1"
)

func ago(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(time.Now().Add(-d)) }

// printed returns the text that a function prints for people.
func printed(f func(out cli.Printer)) string {
	var text bytes.Buffer
	f(cli.Printer{Out: &text})
	return text.String()
}

// In simulated time, so that ages are exact.
func TestStatusSaysWhatAnOperatorHasToKnow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, statusSaysWhatAnOperatorHasToKnow)
}

func statusSaysWhatAnOperatorHasToKnow(t *testing.T) {
	const self = "iam.example.com/us-west2"
	for name, c := range map[string]struct {
		status *adminv1.StatusResponse
		says   []string
		not    []string
	}{
		"nothing": {
			&adminv1.StatusResponse{Deployment: self, Version: "v3", Generation: 1_000_002},
			[]string{self + " runs v3, switched 1 time", "Nothing is outstanding."},
			[]string{"NOTHING IS DELETED", "follows"},
		},
		"clocks that agree": {
			&adminv1.StatusResponse{Deployment: self, DatabaseTime: ago(time.Second), ProcessTime: ago(0)},
			nil,
			[]string{"clocks"},
		},
		"the clock of the database ahead": {
			&adminv1.StatusResponse{Deployment: self, DatabaseTime: ago(-5 * time.Minute), ProcessTime: ago(0)},
			[]string{
				"clocks: that of the database is 5m0s ahead of that of this machine: the ages below are wrong by that",
				"clocks: that of the database is 5m0s ahead of that of its process",
			},
			nil,
		},
		"both clocks behind": {
			&adminv1.StatusResponse{Deployment: self, DatabaseTime: ago(time.Hour), ProcessTime: ago(time.Hour)},
			[]string{"clocks: that of the database is 1h0m0s behind that of this machine"},
			[]string{"of its process"},
		},
		"paused here": {
			&adminv1.StatusResponse{Deployment: self, Paused: []string{self, "b.example.com/east"}},
			[]string{
				"NOTHING IS DELETED: an operator has paused deletions (db-controller resume)",
				"deletions of b.example.com/east are paused here",
			},
			nil,
		},
		"in recovery": {
			&adminv1.StatusResponse{Deployment: self, Epoch: &adminv1.StatusResponse_Epoch{
				Ordinal: 2, Since: ago(time.Minute), AwaitingRegistry: true, Unconfirmed: []string{
					"b.example.com/east",
					"c.example.com/west",
				},
			}},
			[]string{
				"the database was failed over or restored 1 time, last noticed 1m0s ago",
				"NOTHING IS DELETED until the registry returns",
				"until these deployments have confirmed their references: b.example.com/east, c.example.com/west",
			},
			nil,
		},
		"references without targets": {
			&adminv1.StatusResponse{Deployment: self, DanglingReferences: 3},
			[]string{"3 references without a target: db-controller verify lists them"},
			nil,
		},
		"outstanding work and its failure": {
			&adminv1.StatusResponse{
				Deployment: self,
				Outstanding: []*adminv1.StatusResponse_Outstanding{{
					Group: "confirm", Deployment: "b.example.com/east",
					Count: 7, OldestTime: ago(time.Hour),
				}},
				Failures: []*adminv1.Failure{{
					Handler: "confirm", Deployment: "b.example.com/east",
					Error: "connection refused", Time: ago(time.Second),
					NextTime: ago(-12*time.Second - 300*time.Millisecond),
				}},
			},
			[]string{
				"OUTSTANDING", "b.example.com/east", "1h0m0s", "last failure of confirm for b.example.com/east",
				"connection refused; again in 12s",
			},
			[]string{"Nothing is outstanding."},
		},
		"a failure without outstanding work": {
			&adminv1.StatusResponse{
				Deployment: self,
				Failures: []*adminv1.Failure{{
					Handler: "subscribed_deleting", Deployment: "b.example.com/east",
					Error: "connection refused", Time: ago(time.Second), NextTime: ago(time.Second),
				}},
			},
			[]string{
				"Nothing is outstanding.",
				"last failure of subscribed_deleting for b.example.com/east, 1s ago: connection refused\n",
			},
			nil,
		},
		"another database": {
			&adminv1.StatusResponse{
				Deployment: self,
				Failures: []*adminv1.Failure{{
					Handler: "database", Deployment: "b.example.com/east",
					Error: "it runs over another database",
				}},
			},
			[]string{"MESSAGES OF b.example.com/east ARE IGNORED: it runs over another database"},
			nil,
		},
		"decommissioned": {
			&adminv1.StatusResponse{
				Deployment: self,
				Decommissioned: []*adminv1.Decommissioned{{
					Deployment: "b.example.com/east", SaidBy: "operator/ann",
					SaidTime: ago(0), Reason: "sold", Working: true,
				}},
			},
			[]string{
				"b.example.com/east is decommissioned, by operator/ann",
				"sold; work on its references and resources is outstanding",
			},
			nil,
		},
		"kept, delegations, deletions": {
			&adminv1.StatusResponse{
				Deployment: self, Kept: []*adminv1.StatusResponse_Kept{{Kind: "Old", Resources: 2, Sample: "olds/1"}},
				Delegations:  []*adminv1.StatusResponse_Delegations{{Deployment: "b.example.com/east", ActingHeld: 1}},
				AttachedRows: &adminv1.StatusResponse_AttachedRows{Waiting: 1, Incomplete: 2},
				Deletions:    []*adminv1.Deletion{{Root: "//x/1", StartTime: ago(time.Minute), Found: 5, Removed: 2}},
			},
			[]string{
				"kept: 2 resources of kind Old, such as olds/1",
				"may refer to 1 resource of b.example.com/east by acting references, and block 0",
				"attached tables: 1 row waits for a right or a deletion, 2 values without a target (attach --status)",
				"deletion of //x/1, for 1m: here 2 of 5 resources removed",
			},
			nil,
		},
	} {
		text := printed(func(out cli.Printer) { printStatus(out, c.status) })
		for _, want := range c.says {
			require.Contains(t, text, want, name)
		}
		for _, not := range c.not {
			require.NotContains(t, text, not, name)
		}
	}
}

func TestWatchesThatAreBehindAreNamed(t *testing.T) {
	t.Parallel()
	text := printed(func(out cli.Printer) {
		printWatches(out, &adminv1.StatusResponse{Watches: []*adminv1.StatusResponse_Watch{
			{Name: "deletions", Deployment: "b.example.com/east", Primed: true, HeardTime: ago(time.Second)},
			{Name: "deletions", Deployment: "c.example.com/west", Primed: true, HeardTime: ago(time.Minute)},
			{Name: "work", Deployment: "iam.example.com/us-west2", Lost: 2, HeardTime: ago(time.Second)},
		}})
	})
	require.Contains(t, text, "the watch deletions of c.example.com/west has been silent for 1m")
	require.Contains(t, text, "the watch work of iam.example.com/us-west2 has no snapshot yet, lost 2 times")
	require.Contains(t, text, "follows deletions of b.example.com/east, c.example.com/west\n")
	require.NotContains(t, text, "b.example.com/east has been silent")
}

func TestAProcessWhoseLeaseHasExpiredIsMarked(t *testing.T) {
	t.Parallel()
	p := &adminv1.StatusResponse_Process{
		Name: "one", Shards: []uint32{1, 2, 3}, JoinTime: ago(time.Hour),
		ExpireTime: ago(-time.Minute),
	}
	require.Regexp(t, `^process one has 3 of 64 shards, since 1h\d+m\d+s$`, processLine(p))
	p.ExpireTime = ago(10 * time.Second)
	require.Regexp(t, `^THE LEASE OF PROCESS one EXPIRED \d+s ago: nobody works on its 3 shards of 64$`, processLine(p))
}

func TestStatusOfAllNamesThoseThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	found := []deploymentStatus{
		{Deployment: "a.example.com/west", answer: &adminv1.StatusResponse{
			Version: "v1", Processes: []*adminv1.StatusResponse_Process{{}, {}},
			Outstanding: []*adminv1.StatusResponse_Outstanding{
				{Count: 2, OldestTime: ago(time.Minute)},
				{Count: 3, OldestTime: ago(3 * time.Minute)},
			},
		}},
		{Deployment: "b.example.com/east", Error: "connection refused"},
	}
	var err error
	text := printed(func(out cli.Printer) { err = printStatuses(out, found) })
	require.Regexp(t, `a.example.com/west +v1 +2 +5 +3m`, text)
	require.Regexp(t, `b.example.com/east +connection refused`, text)
	require.EqualError(t, err, "1 of 2 deployments did not answer")
	require.Equal(t, cli.Unavailable, cli.ExitCode(err))
	printed(func(out cli.Printer) { err = printStatuses(out, found[:1]) })
	require.NoError(t, err)
}

func TestStuckShowsWhatWaitsAndWhy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, stuckShowsWhatWaitsAndWhy)
}

func stuckShowsWhatWaitsAndWhy(t *testing.T) {
	found := []stuckAt{
		{Deployment: "a.example.com/west", answer: &adminv1.ListStuckResponse{
			Resources: []*adminv1.ListStuckResponse_Resource{{
				Name: "things/1", Since: ago(time.Hour),
				Reasons: []string{"BLOCKED by holders/1", "WAITING for b"},
			}},
			Work: []*adminv1.ListStuckResponse_Work{
				{
					Group: "confirm", Deployment: "b.example.com/east", Count: 2, Since: ago(2 * time.Hour),
					LastError: "refused", NextTime: ago(-90 * time.Second),
				},
				{
					Group: "check_owners", Deployment: "b.example.com/east", Count: 1, Since: ago(time.Hour),
					Reason: "owners there do not exist",
				},
				{Group: "deleting", Count: 1, Since: ago(time.Hour)},
			},
		}},
		{Deployment: "c.example.com/west", Error: "timeout"},
	}
	var err error
	text := printed(func(out cli.Printer) { err = printStuck(out, found, time.Minute) })
	require.Regexp(t, `a.example.com/west +DELETING +things/1 +1h0m +BLOCKED by holders/1; WAITING for b`, text)
	require.Regexp(t, `confirm +2 pieces for b.example.com/east +2h0m +refused; again in 1m30s`, text)
	require.Regexp(t, `check_owners +1 piece for b.example.com/east +1h0m +owners there do not exist`, text)
	require.Regexp(t, `deleting +1 resource +1h0m`, text)
	require.Contains(t, text, "no answer: timeout")
	require.Equal(t, cli.Unavailable, cli.ExitCode(err))

	text = printed(func(out cli.Printer) {
		err = printStuck(out, []stuckAt{{answer: &adminv1.ListStuckResponse{}}}, time.Minute)
	})
	require.NoError(t, err)
	require.Equal(t, "Nothing waits for longer than 1m0s (--longer).\n", text)
}

func TestDeploymentsOfAServiceOrOneOrAll(t *testing.T) {
	t.Parallel()
	id := func(service, region string) schema.Deployment {
		return schema.Deployment{DeploymentID: schema.DeploymentID{Service: service, Region: region}}
	}
	env := &schema.Environment{Deployments: []schema.Deployment{
		id("a.example.com", "west"),
		id("a.example.com", "east"), id("b.example.com", "west"),
	}}
	for arg, want := range map[string]int{
		"": 3, "a.example.com": 2, "a.example.com/east": 1, "c.example.com": 0,
		"a.example.com/south": 0,
	} {
		args := []string{arg}
		if arg == "" {
			args = nil
		}
		require.Len(t, deploymentsOf(env, args), want, arg)
	}
}

func TestVerifyChecksItsFlags(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		how   verification
		wrong string
	}{
		"report":            {verification{dangling: "report"}, ""},
		"repair":            {verification{dangling: "report", repair: true}, ""},
		"act":               {verification{dangling: "act", repair: true, reason: "a standby lagged"}, ""},
		"act is a repair":   {verification{dangling: "act", reason: "a standby lagged"}, "add --repair"},
		"act wants reasons": {verification{dangling: "act", repair: true}, "--reason is missing"},
		"another word":      {verification{dangling: "delete", repair: true}, "--dangling delete: want report or act"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := c.how.check()
			if c.wrong == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.wrong)
			require.Equal(t, cli.WrongUsage, cli.ExitCode(err))
		})
	}
	require.Equal(t, adminv1.VerifyRequest_DANGLING_ACT, verification{
		repair: true, dangling: "act",
		reason: "x",
	}.request().GetDangling())
	require.Zero(t, verification{repair: true, dangling: "report", reason: "x"}.request().GetReason(),
		"a reason belongs to the decision")
}

func TestVerifySumsUpDeployments(t *testing.T) {
	t.Parallel()
	v := &verified{}
	text := printed(func(out cli.Printer) {
		v.out = out
		v.done(schema.DeploymentID{Service: "a.example.com", Region: "west"}, &adminv1.VerifyResponse_Progress{
			References: 2, Blockades: 1, Bodies: 1, Differences: 3, Repaired: 2, ActedUpon: 1,
			Unreachable: []string{"b.example.com/east"},
		})
		v.done(schema.DeploymentID{Service: "c.example.com", Region: "west"},
			&adminv1.VerifyResponse_Progress{Bodies: 5, Differences: 1})
	})
	require.Contains(t, text,
		"a.example.com/west: 2 references, 1 blockade, 0 owners, 1 body compared; 3 differences, 2 repaired")
	require.Contains(t, text, "  1 dangling reference acted upon")
	require.Contains(t, text, "not compared: b.example.com/east does not answer")
	require.Contains(t, text, "5 bodies compared; 1 difference, 0 repaired")
	require.EqualValues(t, 4, v.found)
	require.EqualValues(t, 2, v.repaired)
	require.Equal(t, []string{"b.example.com/east"}, v.unasked)
}

func TestADecisionHasToReachEveryDeployment(t *testing.T) {
	t.Parallel()
	about := schema.DeploymentID{Service: "x.example.com", Region: "west"}
	a, b := schema.DeploymentID{Service: "a.example.com", Region: "west"}, schema.DeploymentID{
		Service: "b.example.com",
		Region:  "west",
	}
	var text bytes.Buffer
	out := cli.Printer{Out: &text, Format: "json"}
	var told decisions
	told.done(out, a, "ok")
	require.NoError(t, told.result(out, about, "still waits"))
	told.failed(out, b, errors.New("connection refused"))
	text.Reset()
	err := told.result(out, about, "did not answer, and still waits")
	require.EqualError(t, err, "b.example.com/west did not answer, and still waits: run the same command again later")
	require.Equal(t, cli.Unavailable, cli.ExitCode(err))
	var document struct {
		Deployment string
		Answers    []decided
	}
	require.NoError(t, json.Unmarshal(text.Bytes(), &document))
	require.Equal(t, about.String(), document.Deployment)
	require.Equal(t, []decided{{a.String(), true, "ok"}, {b.String(), false, "connection refused"}}, document.Answers)
}

func TestTheConsoleListensOnTheMachineItself(t *testing.T) {
	t.Parallel()
	for address, ok := range map[string]bool{
		"127.0.0.1:8080": true, "[::1]:0": true, "0.0.0.0:8080": false,
		":8080": false, "10.0.0.1:80": false, "localhost": false,
	} {
		err := loopback(address)
		require.Equal(t, ok, err == nil, address)
		if err != nil {
			require.Equal(t, cli.WrongUsage, cli.ExitCode(err))
		}
	}
}

func TestTheFolderOfACertificate(t *testing.T) {
	t.Parallel()
	require.Equal(t, "user_ann", folderOf("user/ann"))
	require.Equal(t, "deployment_iam.example.com_us-west2", folderOf("deployment/iam.example.com/us-west2"))
}

// An environment without deployments is no empty table, and not "nothing waits"; programs get an empty array.
func TestAnEnvironmentWithoutDeploymentsIsNamed(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		printed(func(out cli.Printer) { require.NoError(t, printStatuses(out, []deploymentStatus{})) }),
		printed(func(out cli.Printer) { require.NoError(t, printStuck(out, []stuckAt{}, time.Minute)) }),
	} {
		require.Equal(t,
			"The environment has no deployments: describe some, and apply the files (db-controller apply).\n", text)
	}
	require.Equal(t, "Nothing waits for longer than 1m0s (--longer).\n", printed(func(out cli.Printer) {
		require.NoError(t, printStuck(out, []stuckAt{{Deployment: "a", answer: &adminv1.ListStuckResponse{}}},
			time.Minute))
	}))
	require.Contains(t, printed(func(out cli.Printer) {
		require.NoError(t,
			printStuck(out,
				[]stuckAt{{Deployment: "a.example.com/r", answer: &adminv1.ListStuckResponse{Pauses: []*adminv1.Pause{
					{Of: "a.example.com/r", Reason: "r1", Actor: "operator/eve", Time: ago(0)},
					{Of: "b.example.com/r", Reason: "r2", Actor: "operator/eve", Time: ago(0)},
					{
						Of: "b.example.com/r", Handler: "OWNED_DELETING", Reason: "r3", Actor: "operator/eve",
						Time: ago(0),
					},
				}}}}, time.Minute))
	}), "PAUSED  owned-deleting for b.example.com/r")
}
