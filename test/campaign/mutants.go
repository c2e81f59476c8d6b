package campaign

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/test/harness"
)

// mutant is a plausible mistake, planted into a copy of a source file: a campaign that does not find it
// proves little. The sources contain neither the mistake nor a switch for it: the copy replaces the file in a
// separate build (the go command's -overlay).
type mutant struct {
	name string
	// guards names the invariants that the correct text keeps.
	guards  string
	mistake string
	file    string
	// edits are pairs of a text, which is in the file exactly once, and its replacement.
	edits []string
}

// mutants are all mistakes, in the order of the table.
var mutants = append(slices.Clone(played), inTests()...)

// played are the mistakes that the campaign or a schedule of it catches.
var played = []mutant{
	{
		"expiry-removes", "I5, I8", "An expired blockade is removed without asking the holder's deployment.",
		"handlers/pending_resolve.go",
		[]string{
			"		if len(answers.Verdicts) != len(questions) {",
			`		for i := range answers.Verdicts {
			answers.Verdicts[i] = peer.GoneVerdict
		}
		if len(answers.Verdicts) != len(questions) {`,
		},
	},
	{
		"unreachable-is-gone", "I5, I8, I15",
		"A holder's deployment that cannot be asked counts as one without references.",
		"handlers/pending_resolve.go",
		[]string{
			`		if err != nil {
			return fmt.Errorf("resolve at %s: %w", holder, err)
		}`,
			`		if err != nil {
			answers = &peer.Answers{Epoch: uuid.Max}
			for range questions {
				answers.Verdicts = append(answers.Verdicts, peer.GoneVerdict)
			}
		}`,
		},
	},
	{
		"resolver-does-not-abort", "I5, I8",
		"An undecided attempt that has expired is answered with gone, and may commit afterwards.",
		"schema/shadow/internal/attempt/blockade.go",
		[]string{
			`	if _, err := tx.Exec(ctx, decideAbortedSQL, r.expired()); err != nil {
		return err
	}`,
			`	if len(r.expired()) > 0 {
		for i := range r.verdicts {
			if r.verdicts[i] == peer.Undecided && r.questions[i].Expired {
				r.verdicts[i] = peer.GoneVerdict
			}
		}
		return nil
	}`,
		},
	},
	{
		"establish-without-lock", "I1, I3", "Establish reads its targets and does not lock them.",
		"schema/shadow/internal/target/establish.go",
		[]string{
			"\nORDER BY s.id\nFOR SHARE OF s`",
			"\nORDER BY s.id`",
		},
	},
	{
		"check-with-the-lock", "I1, I3", "A delete looks for blockades before it has the lock.",
		"schema/shadow/internal/deletion/delete.go",
		[]string{
			"	b.Queue(shortWaitSQL)\n	b.Queue(lockRootsSQL",
			"	b.Queue(shortWaitSQL)\n	seen = d.store.cascade.QueueLockedRows(tx, b, byNames, kinds, names)\n	b.Queue(lockRootsSQL",
			"	seen = d.store.cascade.QueueLockedRows(tx, b, byNames, kinds, names)\n	if err := tx.SendBatch",
			"	if err := tx.SendBatch",
		},
	},
	{
		"names-instead-of-attempts", "I7, I8, I9",
		"A release, or an answer, changes every blockade of the holder on the target by that field.",
		"schema/shadow/internal/target/blockade.go",
		[]string{
			`b.field_id = i.field_id AND b.attempt IS NOT DISTINCT FROM i.attempt`,
			`b.field_id = i.field_id`,
		},
	},
	{
		"deleting-takes-references", "I4, I1", "A target in DELETING takes new references.",
		"schema/shadow/internal/target/establish.go",
		[]string{
			`	case state != peer.Active:
		return peer.TargetDeleting`,
			`	case state != peer.Active && closing:
		return peer.TargetDeleting`,
		},
	},
	{
		"tentative-does-not-count", "I3", "Only confirmed blockades block a delete.",
		"schema/shadow/internal/cascade/closure.go",
		[]string{
			"SELECT t, EXISTS (SELECT FROM dbcontroller.blockade WHERE target_id = t),",
			"SELECT t, EXISTS (SELECT FROM dbcontroller.blockade WHERE target_id = t AND expires_at IS NULL),",
		},
	},
	{
		"entry-forgotten", "I8", "Confirming an acting reference writes no holder entry.",
		"schema/shadow/internal/target/blockade.go",
		[]string{
			`    SELECT DISTINCT target_id, @deployment::int FROM taken WHERE behaviour <> {allow_dangling}
    ON CONFLICT DO NOTHING`,
			`    SELECT DISTINCT target_id, @deployment::int FROM taken WHERE behaviour = {allow_dangling}
    ON CONFLICT DO NOTHING`,
		},
	},
	{
		"late-confirm-tells-nobody", "I4", "A confirm whose target was marked meanwhile writes no notice.",
		"schema/shadow/internal/target/blockade.go",
		[]string{
			"SELECT id, shard FROM dbcontroller.shadow WHERE id = ANY (ARRAY (SELECT DISTINCT target_id FROM taken)) AND state = {deleting}",
			"SELECT id, shard FROM dbcontroller.shadow WHERE id = ANY (ARRAY (SELECT DISTINCT target_id FROM taken)) AND state = 9",
		},
	},
	{
		"finalised-beside-blockades", "I3, I13",
		"A blocked resource is removed when every deployment has acknowledged.",
		"schema/shadow/internal/target/finalise.go",
		[]string{
			"    AND NOT EXISTS (SELECT FROM dbcontroller.blockade WHERE target_id = t.id)\n", "",
		},
	},
	{
		"acknowledged-before-acting", "I19", "Deletions are acknowledged before they are acted upon.",
		"handlers/subscribed_deleting.go",
		[]string{
			`	failed, err := h.Store.ActFor(ctx, from, deletions, patience)
	if err != nil {`,
			`	if position != "" {
		if err := h.Peers.Acknowledge(ctx, from, epoch, position, earlier); err != nil {
			return nil, err
		}
	}
	failed, err := h.Store.ActFor(ctx, from, deletions, patience)
	if err != nil {`,
		},
	},
	{
		"position-forgets-who-is-under-way", "I23",
		"A position counts transactions as seen that have not committed yet, as a cursor over a sequence does.",
		"internal/feed/feed.go",
		[]string{
			"SELECT pg_current_snapshot()::text, ` + lsnSQL",
			"SELECT pg_snapshot_xmax(pg_current_snapshot())::text || ':' || pg_snapshot_xmax(pg_current_snapshot())::text || ':', ` + lsnSQL",
		},
	},
	{
		"release-forgotten", "I8, I13", "References that an update drops are not released.",
		"handlers/pending_release.go",
		[]string{
			"if len(m.Release)+len(m.Abandon) > 0 {",
			"if len(m.Abandon) > 0 {",
		},
	},
	{
		"release-before-commit", "I6, I8", "References that an update drops are released before the update is decided.",
		"schema/shadow/internal/write/save.go",
		[]string{
			"\t\tif err := attempt.EstablishAll(ctx, s.attempts, sv); err != nil {",
			`		for _, wr := range sv.Writes {
			for _, h := range wr.Drop {
				if h.Behaviour == schema.Block && h.Deployment != nil && h.UID != nil {
					_, _ = s.Pool.Exec(ctx, "INSERT INTO dbcontroller.work (action, shard, deployment_id, attempt, holder_uid, field_id, target_uid)"+
						" VALUES (2, $1, $2, $3, $4, $5, $6)", schema.Shard(wr.Name), *h.Deployment, h.Attempt, wr.ShadowUID, h.FieldID, *h.UID)
				}
			}
		}
		if err := attempt.EstablishAll(ctx, s.attempts, sv); err != nil {`,
			"\t\"github.com/db-controller/db-controller/schema/peer\"\n",
			"\t\"github.com/db-controller/db-controller/schema\"\n\t\"github.com/db-controller/db-controller/schema/peer\"\n",
		},
	},
	{
		"owner-unreachable-is-gone", "I15, I16", "An owner whose deployment cannot be asked counts as gone.",
		"handlers/pending_check_owners.go",
		[]string{
			`			return nil, batchError{fmt.Errorf("check owners at %s: %w", at, err)}`,
			`			answers = &peer.OwnerAnswers{}
			for range c.Questions {
				answers.Answers = append(answers.Answers, peer.OwnerAnswer{Verdict: peer.OwnerAbsent})
			}`,
			"\t\"fmt\"\n", "",
		},
	},
	{
		"everything-is-excused", "I3", "A delete that looked ahead ignores its local blockers.",
		"schema/shadow/internal/deletion/lookahead.go",
		[]string{
			`	for _, b := range from.blockers {
		w.Block(b)
	}
`, "",
			"\t\tl.blocks[b.Edge] = w.Goes(peer.PlanTarget{Deployment: s.Self, UID: b.UID}) && !w.MindAll",
			"\t\tl.blocks[b.Edge] = true",
		},
	},
	{
		"lost-commit-is-released", "I8, I29", "A write whose commit's answer was lost is taken for failed.",
		"schema/shadow/internal/attempt/attempt.go",
		[]string{
			"abort(ctx, tx, sv.Attempt); err != nil || committed {",
			"abort(ctx, tx, sv.Attempt); err != nil {",
			"sv.Attempt).Scan(&committed); err != nil || committed {",
			"sv.Attempt).Scan(&committed); err != nil {",
		},
	},
	{
		"one-right-includes-the-other", "I3, I8, I30",
		"The acting right to a target is taken for the right to block it.",
		"schema/shadow/internal/write/rights_sql.go",
		[]string{
			"    WHERE i.blocks AND ` + db.BlockRightCountsSQL", "    WHERE i.blocks AND ` + db.RightCountsSQL",
			"countingSQL + ` AND ` + db.BlockRightCountsSQL", "countingSQL + ` AND ` + db.RightCountsSQL",
		},
	},
	{
		"granted-without-an-entry", "I8, I30",
		"A right is granted for a reference that leaves no holder entry, so that no deletion ends it.",
		"schema/shadow/internal/target/delegation.go",
		[]string{
			"JOIN dbcontroller.holder_entry e ON e.target_id = s.id AND e.deployment_id = $2",
			"LEFT JOIN dbcontroller.holder_entry e ON e.target_id = s.id AND e.deployment_id = $2",
			"AND r.behaviour NOT IN ({block}, {allow_dangling})", "",
		},
	},
	{
		"right-of-a-lost-epoch", "I30", "A right counts although one of the two databases is in another epoch.",
		"schema/shadow/internal/db/delegation.go",
		[]string{
			`	RightCountsSQL = ` + "`" + `f.acting_epoch IS NOT NULL
    AND f.acting_own = (SELECT epoch FROM dbcontroller.meta)
    AND f.acting_epoch = (SELECT COALESCE(d.epoch, f.acting_epoch) FROM dbcontroller.deployment d WHERE d.id = f.deployment_id)` + "`",
			"	RightCountsSQL = `f.acting_epoch IS NOT NULL`",
			`	BlockRightCountsSQL = ` + "`" + `f.block_epoch IS NOT NULL
    AND f.block_own = (SELECT epoch FROM dbcontroller.meta)
    AND f.block_epoch = (SELECT COALESCE(d.epoch, f.block_epoch) FROM dbcontroller.deployment d WHERE d.id = f.deployment_id)` + "`",
			"	BlockRightCountsSQL = `f.block_epoch IS NOT NULL`",
		},
	},
	{
		"acted-upon-before-the-close", "I1, I31",
		"A deletion is acted upon while rights to its target last, so that references written under them come too late.",
		"schema/shadow/internal/follow/act.go",
		[]string{"	closed, err := a.closeTargets(ctx, fresh)", "	closed, err := fresh, error(nil)"},
	},
	{
		"recall-does-not-wait", "I3, I31",
		"A recall looks for references before the writes under the right have ended.",
		"schema/shadow/internal/rights/recall.go",
		[]string{"		b.Queue(db.LockRightsSQL, ids)\n", ""},
	},
	{
		"free-while-the-right-lasts", "I3, I8, I31", "A recall is answered with gone, and the right goes on.",
		"schema/shadow/internal/rights/recall.go",
		[]string{"			return s.remove(ctx, tx, id, r.Key.Attempt)", "			return nil"},
	},
	{
		"held-is-answered-as-gone", "I2, I3, I8", "A recall does not see what was written under the right.",
		"schema/shadow/internal/rights/recall.go",
		[]string{
			"r.delegated AND r.behaviour = {block} AND NOT r.dangling AND h.state",
			"r.delegated AND r.behaviour <> {block} AND NOT r.dangling AND h.state",
		},
	},
	{
		"right-taken-after-a-close", "I30, I31",
		"An answer that gives a right is taken although the row was closed after the question.",
		"schema/shadow/internal/rights/rights.go",
		[]string{"ON f.id = i.id AND f.turn = i.turn\nWHERE", "ON f.id = i.id\nWHERE"},
	},
	{
		"right-returned-beside-references", "I2, I8",
		"A right is returned although references stand that were written under it.",
		"schema/shadow/internal/rights/look.go",
		[]string{
			"    AND NOT EXISTS (SELECT FROM dbcontroller.reference r WHERE r.target_id = f.id AND r.delegated AND r.behaviour = {block} AND NOT r.dangling)\n", "",
		},
	},
	{
		"dropped-without-a-look", "I13, I28",
		"The last reference under an ended right goes, and nobody looks whether its proxy is needed.",
		"schema/shadow/internal/write/store.go",
		[]string{
			"WHERE gone.behaviour = {block} AND gone.delegated`",
			"WHERE gone.behaviour = {block} AND gone.delegated AND false`",
		},
	},
	{
		"entry-released-beside-a-right", "I30, I31",
		"An operator releases a holder entry, and its deployment goes on writing under the right that rests on the entry.",
		"schema/shadow/internal/rights/close.go",
		[]string{"		b.Queue(closeSQL, id)\n", ""},
	},
	{
		"cascade-tells-entries-only", "I4, I13",
		"A deployment with the right to block a target, and no holder entry, does not hear of its deletion.",
		"schema/shadow/internal/cascade/carry.go",
		[]string{
			"JOIN going ON going.id = b.target_id AND going.uid = b.holder_uid",
			"JOIN going ON going.id = b.target_id AND going.uid = b.holder_uid AND false",
		},
	},
	{
		"excused-while-the-right-lasts", "I3",
		"The holders under a right go along with a deletion, and it is decided without ending the right.",
		"schema/shadow/internal/deletion/lookahead.go",
		[]string{"s.askAll(ctx, proxies, peer.RecallEnds)", "s.askAll(ctx, proxies, peer.RecallLooks)"},
	},
	{
		"unanswered-recall-is-free", "I5, I8, I15",
		"A deployment that does not answer a recall counts as one without references.",
		"schema/shadow/internal/deletion/lookahead.go",
		[]string{"				a.unanswered = append(a.unanswered, blockades...)\n", `				if k.rights {
					a.moved = true
					for i := range blockades {
						_ = s.target.Release(ctx, k.deployment, uuid.Max, []peer.BlockadeKey{blockades[i].question.Key}, nil)
					}
				} else {
					a.unanswered = append(a.unanswered, blockades...)
				}
`},
	},
	{
		"unset-takes-the-whole-list", "I10", "Unsetting one element of a list removes the others too.",
		"schema/shadow/internal/cascade/carry.go",
		[]string{
			"\t\t\treturn v.Model.Names(s.Self, kind.Kind, text, value, name)",
			`			return value != "" || v.Model.Names(s.Self, kind.Kind, text, value, name)`,
		},
	},
	{
		"finalizers-do-not-hold", "I33", "A resource in DELETING is removed although it has finalizers.",
		"schema/shadow/internal/target/finalise.go",
		[]string{
			"AND NOT t.block_deletion AND t.finalizers IS NULL\n",
			"AND NOT t.block_deletion\n",
		},
	},
	{
		"removed-at-once-with-finalizers", "I33",
		"A member of a cascade inside one database is removed at once although its kind has finalizers.",
		"schema/shadow/internal/plan/decide.go",
		[]string{
			"	return m.Later || waits[m.ID] || m.Protected || len(b.Finalizers[m.Kind]) > 0",
			"	return m.Later || waits[m.ID] || m.Protected",
		},
	},
}

// plant writes the files with the mistakes, and returns the overlay for the go command. Each mistake is in a
// file of its own.
func plant(t testing.TB, mistakes ...mutant) (overlay string) {
	t.Helper()
	root, dir, replace := moduleRoot(t), t.TempDir(), map[string]string{}
	for _, m := range mistakes {
		source, err := os.ReadFile(filepath.Join(root, m.file))
		require.NoError(t, err)
		text := string(source)
		for i := 0; i < len(m.edits); i += 2 {
			text = harness.ReplaceCode(t, m.file, text, m.edits[i], m.edits[i+1],
				m.name+": the text to replace has to be in "+m.file+" once: "+m.edits[i])
		}
		if strings.Contains(text, "uuid.") && !strings.Contains(text, `"github.com/google/uuid"`) {
			text = strings.Replace(text, "import (", "import (\n\t\"github.com/google/uuid\"", 1)
		}
		wrong := filepath.Join(dir, m.name+".go")
		require.NoError(t, os.WriteFile(wrong, []byte(text), 0o600))
		require.Empty(t, replace[filepath.Join(root, m.file)], "%s: another mistake is in the file", m.name)
		replace[filepath.Join(root, m.file)] = wrong
	}
	raw, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	overlay = filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(overlay, raw, 0o600))
	return overlay
}

// build builds the program with the mistake, and returns its path.
func (m mutant) build(t testing.TB) (binary string) {
	t.Helper()
	binary = filepath.Join(t.TempDir(), "db-controller")
	compile(t, m.name, "-overlay", plant(t, m), "-tags", "crashpoints", "-o", binary, "./cmd/db-controller")
	return binary
}

// buildPackages builds the packages of mistakes in different files.
func buildPackages(t testing.TB, mistakes []mutant) {
	t.Helper()
	args, names := []string{"-overlay", plant(t, mistakes...)}, ""
	for _, m := range mistakes {
		names += m.name + " "
		if dir := "./" + filepath.Dir(m.file); !slices.Contains(args, dir) {
			args = append(args, dir)
		}
	}
	compile(t, names, args...)
}

func compile(t testing.TB, what string, args ...string) {
	t.Helper()
	cmd := harness.GoBuild(t.Context(), args...)
	cmd.Dir = moduleRoot(t)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s: %s", what, out)
}

func moduleRoot(t testing.TB) string {
	t.Helper()
	root, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}").Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(root))
}

func (m mutant) String() string { return fmt.Sprintf("%s (%s)", m.name, m.mistake) }
