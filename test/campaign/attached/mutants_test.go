package attached

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/test/harness"
)

// mutant is a plausible mistake in the code of attached tables, and a test that has to fail with it. The copy
// of the file with the mistake is built by the go command's -overlay; the sources hold no mistake and no
// switch for one.
type mutant struct {
	name, file, right, wrong string
	tests                    string // of package schema/shadow; empty: the tests here
}

var mutants = []mutant{
	{
		"a-deletion-by-a-column-passes-references", "schema/shadow/internal/rows/rows.go", `share = "FOR SHARE"`,
		`share = "FOR KEY SHARE"`, "TestADeletionByAColumnWaitsForReferences_I1",
	},
	{
		"a-deleted-row-refers", "internal/attach/names.go", `" WHERE $2 OR ($1)."+column`,
		`" WHERE $2 OR true OR ($1)."+column`, "TestARowIsDeletedByAColumn_I1_I34",
	},
	{
		"a-deletion-by-a-column-is-a-move", "internal/attach/triggers.go",
		`gone("m.name", gones(d)+" WHERE m.there", false)`, `gone("m.name", gones(d)+" WHERE m.there", true)`,
		"TestARowIsDeletedByAColumn_I1_I34",
	},
	{
		"one-deleted-row-is-none", "internal/attach/triggers.go", `"NOT (FOUND OR EXISTS`,
		`"NOT (FOUND OR false AND EXISTS`, "TestARowIsDeletedByAColumn_I1_I34",
	},
	{
		"names-of-before", "internal/attach/names.go", "if present, ok := n.columns[declared]; ok {",
		"if present, ok := n.columns[declared]; ok && false {", "TestTheNextVersionDeclaresTheNewNames_I34",
	},
	{
		"a-key-used-again-is-the-old-one", "schema/shadow/internal/target/rows.go", "case goes[k]:",
		"case goes[k] && absent[k]:", "TestARowBehindADeletionIsAnotherResource_I1",
	},
	{
		"a-deletion-takes-rows-that-have-moved", "schema/shadow/internal/rows/referring.go",
		"t.sameKey(), named(given), given(len(values)))",
		"t.sameKey(), \"(\"+named(given)+\" OR true)\", given(len(values)))", "TestADeletionLooksAtTheRowAsItIs",
	},
	{
		"first-reference-alone", "internal/attach/triggers.go", "	columns := referring(references)\n",
		"	columns := referring(references)[:1]\n", "",
	},
	{
		"rights-lack-in-silence", "internal/attach/strict.go", "IF NOT (%s) THEN\n        PERFORM",
		"IF false AND NOT (%s) THEN\n        PERFORM", "TestStrictReferencesCountFromTheirCommit",
	},
	{
		"one-row-takes-no-lock", "internal/attach/strict.go", "            FOR KEY SHARE OF f%[6]s;`", "            ;`",
		"TestOneRowTakesNoRightThatHasEnded",
	},
	{
		"one-of-two-targets", "internal/attach/strict.go", `") <> 1 THEN NULL"`, `") < 1 THEN NULL"`,
		"TestAStatementSharesTheRightsThatItNeeds",
	},
	{
		"one-of-two-rights", "internal/attach/strict.go", "        IF own.rows = 1 THEN\n",
		"        IF own.rows > 0 THEN\n", "TestOneRowTakesNoRightThatHasEnded",
	},
	{
		"one-row-keeps-its-references", "internal/attach/triggers.go", "THEN a.refers = b.refers END", "THEN true END",
		"TestStatementsLeaveLooksAtRights",
	},
	{
		"the-first-row-stands-for-all", "internal/attach/triggers.go", "LIMIT 2) AS t) = 1 THEN",
		"LIMIT 2) AS t) >= 1 THEN", "TestStatementsLeaveLooksAtRights",
	},
	{
		"truncate-forgotten", "schema/shadow/internal/deletedrows/deletedrows.go",
		"WHERE s.kind_id = $1 AND NOT s.hidden`", "WHERE s.kind_id = $1 AND s.hidden`",
		"TestKeysChangeAfterTheLastActingReference_I4",
	},
	{
		"deleted-in-the-store-alone", "schema/shadow/internal/cascade/carry.go",
		"		keys = append(keys, rows.Key{Kind: m.Kind, Name: m.Name})",
		"		keys = append(keys[:0], rows.Key{Kind: m.Kind, Name: m.Name})", "TestRowsAreDeletedTogether",
	},
	{
		"recall-beside-rows", "schema/shadow/internal/rights/recall.go", "range referrers[id] {", "range referrers[-id] {",
		"TestStrictReferencesCountFromTheirCommit",
	},
	{
		"acknowledged-beside-rows", "schema/shadow/internal/follow/rows.go",
		"err != nil || !s.rows.Refer() {\n		return err\n	}\n	for limit",
		"err != nil || s.rows.Refer() {\n		return err\n	}\n	for limit",
		"TestStrictReferencesCountFromTheirCommit",
	},
	{
		"returned-beside-rows", "schema/shadow/internal/rights/look.go", "return used[f.ID] }",
		"return used[f.ID] && false }", "TestRowsOfAStatementCountFromItsCommit_I1_I3_I31",
	},
	{
		"rows-of-a-lost-right-are-not-claimed", "schema/shadow/internal/verify/recover.go",
		"s.rights.Claim(ctx, at); err != nil", "error(nil); err != nil", "TestRowsThatCannotBeStoredAreClaimed_I1_I30",
	},
	{
		"the-last-of-two-targets-of-a-name", "schema/shadow/internal/rows/referring.go",
		"WHERE NOT EXISTS (` + laterSQL + `)`", "WHERE true`", "TestStrictRowsSurviveAFailover",
	},
	{
		"no-look-when-rows-go", "internal/attach/strict.go", "		if !r.Blocks() {", "		if r.Blocks() {",
		"TestStatementsLeaveLooksAtRights",
	},
	{
		"former-references-count-no-more", "schema/shadow/internal/rows/rows.go", "	for i := range former {",
		"	for i := range former[:0] {", "TestABehaviourThatChangesHoldsAllTheWay_I1_I3_I34",
	},
	{
		"rows-of-before-attach-get-no-right", "schema/shadow/internal/rights/lacking_rows.go",
		"			return s.rights.Lack(ctx, r, lacking)", "			return s.rights.Lack(ctx, r, lacking[:0])",
		"TestRowsOfBeforeAttachGetTheirRights_I34",
	},
	{
		"a-stale-missing-value-acts", "schema/shadow/internal/rights/lacking_rows.go",
		"present[i] = present[i] && without[v.Texts()]", "present[i] = present[i] || without[v.Texts()]",
		"TestAMissingValueWithARightIsNoMore_I34",
	},
	{
		"async-statements-note-nothing", "internal/attach/strict.go", "HAVING bool_and(t.added)) AS t\"",
		"HAVING NOT bool_and(t.added)) AS t\"", "TestAsyncStatementsNoteValuesWithoutARight_I34",
	},
	{
		"a-later-note-counts-for-nothing", "migrations/deployment/00001_baseline.sql", "AND o.seq <> l.seq\n",
		"AND o.seq < l.seq\n", "TestALaterNoteKeepsRowsOfAMissingTarget",
	},
	{
		"a-key-is-used-again-at-once", "internal/attach/triggers.go",
		"const reused = \"EXISTS (SELECT FROM dbcontroller.deleted_row) OR",
		"const reused = \"false AND EXISTS (SELECT FROM dbcontroller.deleted_row) OR false AND",
		"TestAKeyIsUsedAgainWhenItsDeletionIsAcknowledged_I1",
	},
	{
		"code-of-others-with-the-rights-of-the-store", "schema/shadow/internal/rows/change.go",
		"if db.BeforeCommit(tx, fireDeferred) {", "if db.BeforeCommit(tx, fireDeferred) && false {",
		"TestCodeOfOthersHasNoRightsOfTheController",
	},
	{
		"deferred-code-at-the-commit", "schema/shadow/internal/db/tx.go", "	if m.before == nil {", "	if true {",
		"TestCodeOfOthersLeavesNothingInTheSession",
	},
	{
		"one-round-of-deferred-code", "migrations/deployment/00001_baseline.sql",
		"OPERATOR(pg_catalog.=) (number OPERATOR(pg_catalog.+) 1)",
		"OPERATOR(pg_catalog.>=) (number OPERATOR(pg_catalog.+) 1)", "TestCodeOfOthersLeavesNothingInTheSession",
	},
	{
		"deferred-constraints-run-no-code", "migrations/deployment/00001_baseline.sql", "WHERE t.tgdeferrable)",
		"WHERE t.tgdeferrable AND NOT t.tgisinternal)", "TestCodeOfOthersLeavesNothingInTheSession",
	},
	{
		"code-of-others-changes-the-session", "migrations/deployment/00001_baseline.sql", "    IF later = before THEN",
		"    IF later = later THEN", "TestCodeOfOthersLeavesNothingInTheSession",
	},
	{
		"rows-kept-in-silence", "schema/shadow/internal/rows/referring.go", "if err == nil && len(left) > 0 {",
		"if err == nil && len(left) > 1000 {", "TestTriggersOfTheApplicationKeepRows",
	},
	{
		"the-last-target-of-a-name-by-its-number", "schema/shadow/internal/rows/referring.go", "g.latest > f.latest`",
		"g.id > f.id`", "TestRowsReferToTheTargetThatARestoreBroughtBack_I1",
	},
	{
		"a-new-row-waits-with-an-old-resource", "schema/shadow/internal/rows/holders.go",
		"AND s.name = i.name AND NOT s.hidden OFFSET 0", "AND s.name = i.name OFFSET 0",
		"TestADeletionLeavesRowsThatStay_I1_I4",
	},
	{
		"a-later-row-has-no-grace", "schema/shadow/internal/rights/lacking_rows.go",
		"CASE WHEN o.missing AND NOT u.later THEN", "CASE WHEN o.missing THEN",
		"TestRowsOfAMissingTargetGoAfterAGrace_I34",
	},
	{
		"many-rows-of-before-go", "schema/shadow/internal/rights/lacking_rows.go", "if !l.before || may[l.reference] {",
		"if !l.before || !may[l.reference] {", "TestManyRowsOfBeforeWaitForAPerson",
	},
	{
		"own-rows-are-forgotten", "schema/shadow/internal/follow/prefetch.go", "a.from == s.Self && s.rows.Refer()",
		"a.from == s.Self && !s.rows.Refer()", "TestRowsReferToTheirOwnDeployment",
	},
	{
		"unused-rights-are-confirmed", "schema/shadow/internal/rights/rights.go", "if !g.unused {",
		"if !g.unused || true {", "TestARightIsConfirmedByItsUse_I3_I8",
	},
	{
		"unused-rights-are-gone", "schema/shadow/internal/attempt/blockade.go",
		"r.verdicts[i] != peer.Undecided || r.unused[i] || !known", "r.verdicts[i] != peer.Undecided || !known",
		"TestARightIsConfirmedByItsUse_I3_I8",
	},
	{
		"a-released-right-goes-on", "schema/shadow/internal/operate/release.go", "if k.ofRight() {",
		"if k.ofRight() && k.what != blockade {", "TestRightsOfASilentDeploymentAreReleased_I3_I8_I31",
	},
	{
		"rows-under-a-released-right-are-forgotten", "schema/shadow/internal/rights/close.go", "if len(rows) > 0 {",
		"if len(rows) > 1000 {", "TestRightsOfASilentDeploymentAreReleased_I3_I8_I31",
	},
	{
		"rights-that-are-used-count", "schema/shadow/internal/rights/unused.go", "s.noteUsed(ctx, ids); err != nil",
		"s.noteUsed(ctx, ids[:0]); err != nil", "TestRightsThatNoRowUsesAreFew_I20",
	},
	{
		"a-detached-partition-is-heard", "internal/attach/triggers.go", "	if !d.Partitioned {", "	if true {",
		"TestPartitionsComeAndGo",
	},
	{
		"partitions-have-no-triggers", "internal/attach/attach.go", "range t.tables(p.tables) {", "range p.tables[:1] {",
		"TestPartitionedTablesReferAndAreReferredTo_I1_I3_I34",
	},
	{
		"times-of-the-session", "internal/attach/triggers.go", "	if t.timed {", "	if t.timed && false {",
		"TestPartitionedTablesReferAndAreReferredTo_I1_I3_I34",
	},
	{
		"one-character-of-a-key", "schema/row.go", "	if t == \"character\" {", "	if t == \"\" {",
		"TestPartitionedTablesReferAndAreReferredTo_I1_I3_I34",
	},
	{
		"statements-of-other-kinds-refer", "internal/attach/strict.go", "	if r.When != nil { // null",
		"	if r.When != nil && false { // null", "TestAColumnNamesSeveralKinds_I1_I3_I34",
	},
	{
		"rows-of-other-kinds-refer", "schema/shadow/internal/rows/rows.go", "	if r.When == nil {",
		"	if r.When == nil || true {", "TestAColumnNamesSeveralKinds_I1_I3_I34",
	},
	{
		"only-the-kind-changes", "internal/attach/triggers.go", "columns = append(columns, r.AllColumns()...)",
		"columns = append(columns, r.Columns...)", "TestAColumnNamesSeveralKinds_I1_I3_I34",
	},
	{
		"a-merge-moves-in-silence", "internal/attach/triggers.go", "	if d.Partitioned {\n		triggers",
		"	if d.Partitioned && false {\n		triggers", "TestARowThatAMergeMovesRefers_I1_I3_I34",
	},
	{
		"a-partition-comes-back-in-silence", "migrations/deployment/00001_baseline.sql",
		"AND NOT i.inhrelid || ':' || i.xmin = ANY (d.partitions)", "AND false",
		"TestAPartitionThatComesBackIsRead_I34",
	},
	{
		"used-rights-are-asked-for-as-unused", "schema/shadow/internal/rights/asked.go", "asked[i].Block && w.Unused:",
		"asked[i].Block:", "TestAUsedRightIsNotReleased_I3_I8",
	},
	{
		"commas-join-keys", "internal/attach/triggers.go", `if len(d.Key) > 1 {`, `if len(d.Key) > 9 {`,
		"TestAttachedTablesBehaveLikeOneDatabase",
	},
}

// build builds the tests with the mistake.
func (m mutant) build(t *testing.T) (binary, dir string) {
	t.Helper()
	root := harness.Root(t)
	source, err := os.ReadFile(filepath.Join(root, m.file))
	require.NoError(t, err)
	text := harness.ReplaceCode(t, m.file, string(source), m.right, m.wrong, m.name+": the text has to be in "+m.file+" once")
	tmp := t.TempDir()
	wrong, overlay, binary := filepath.Join(tmp, "wrong.go"), filepath.Join(tmp, "overlay.json"),
		filepath.Join(tmp, "test")
	require.NoError(t, os.WriteFile(wrong, []byte(text), 0o600))
	raw, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, m.file): wrong}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, raw, 0o600))
	dir = filepath.Join(root, "test", "campaign", "attached")
	if m.tests != "" {
		dir = filepath.Join(root, "schema", "shadow")
	}
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", overlay, "-o", binary, ".")
	build.Dir = dir
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s: %s", m.name, out)
	return binary, dir
}

// The texts that the mistakes replace are in the sources, each once.
func TestMistakesInAttachedTablesCanBePlanted(t *testing.T) {
	t.Parallel()
	for _, m := range mutants {
		source, err := os.ReadFile(filepath.Join(harness.Root(t), m.file))
		require.NoError(t, err)
		harness.ReplaceCode(t, m.file, string(source), m.right, m.wrong, m.name+": the text has to be in "+m.file+" once: "+m.right)
	}
}

// DBCONTROLLER_MUTANTS plants all mistakes (make mutants), DBCONTROLLER_MUTANT some of them, separated by
// commas.
func TestMistakesInAttachedTablesAreCaught(t *testing.T) {
	only := os.Getenv("DBCONTROLLER_MUTANT")
	if only == "" && os.Getenv("DBCONTROLLER_MUTANTS") == "" {
		t.Skip("builds the tests many times: run make mutants")
	}
	sound := map[string]bool{}
	for _, m := range mutants {
		if only != "" && !strings.Contains(","+only+",", ","+m.name+",") {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			out, err := m.run(t)
			require.NoError(t, noticed(out, err), m.name)
			if sound[m.tests] {
				return
			}
			// The same tests pass here and now without a mistake: the machine was not too slow for them.
			control := mutant{m.name + " (control)", m.file, m.right, m.right, m.tests}
			out, err = control.run(t)
			require.NoError(t, err, "%s fails without the mistake: %s", m.tests, out)
			sound[m.tests] = true
		})
	}
}

// run builds the tests with the mistake, and runs them.
func (m mutant) run(t *testing.T) (out string, err error) {
	t.Helper()
	binary, dir := m.build(t)
	cmd := exec.CommandContext(t.Context(), binary, "-test.run", cmp.Or(m.tests, "TestAttachedTables"),
		"-test.timeout", "5m")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "DBCONTROLLER_ATTACHED_SEEDS=20")
	raw, err := cmd.CombinedOutput()
	return string(raw), err
}

// noticed returns an error unless a test has failed by a finding: tests that ran out of time have found
// nothing.
func noticed(out string, err error) error {
	switch {
	case err == nil:
		return errors.New("the mistake is not noticed")
	case strings.Contains(out, "panic: test timed out"):
		return fmt.Errorf("the tests ran out of time:\n%s", out)
	case !strings.Contains(out, "--- FAIL"):
		return fmt.Errorf("no test has failed:\n%s", out)
	}
	return nil
}

func TestALackOfTimeIsNoFinding(t *testing.T) {
	t.Parallel()
	failed := errors.New("exit status 1")
	require.NoError(t, noticed("--- FAIL: TestA (3s)\n    orders/1 exists", failed))
	require.Error(t, noticed("PASS", nil))
	require.Error(t, noticed("--- FAIL: TestB (3s)\npanic: test timed out after 5m0s", failed))
	require.Error(t, noticed("fork/exec: no such file", failed))
}
