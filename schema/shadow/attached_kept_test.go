package shadow_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/peer"
	"github.com/db-controller/db-controller/schema/shadow"
)

// A native key, also a key that is checked at the commit, and a trigger of the application keep a row of an
// attached table: a delete of that row or of its target by the API is refused and names them. Nothing has
// changed, and the delete is accepted when the key and the trigger are gone.
func TestADeleteNamesTheConstraintThatKeepsARow(t *testing.T) {
	t.Parallel()
	a := newAttached(t)
	a.exec(a.crm, `CREATE TABLE notes (customer bigint CONSTRAINT notes_customer REFERENCES customers);
CREATE TABLE later (customer bigint CONSTRAINT later_customer REFERENCES customers DEFERRABLE INITIALLY DEFERRED);
CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'customer % has a contract', OLD.id; END $$;
INSERT INTO customers VALUES (1), (2), (3), (4); INSERT INTO notes VALUES (1); INSERT INTO later VALUES (2)`)
	a.attach()
	a.exec(a.crm, `CREATE TRIGGER contract BEFORE DELETE ON customers FOR EACH ROW WHEN (OLD.id = 3) EXECUTE FUNCTION keep();
CREATE FUNCTION silent() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER stays BEFORE DELETE ON customers FOR EACH ROW WHEN (OLD.id = 4) EXECUTE FUNCTION silent()`)
	for name, want := range map[string]peer.KeptError{
		"1": {
			Table: "public.customers", Constraint: "notes_customer",
			Text: `update or delete on table "customers" violates foreign key constraint "notes_customer" on table "notes"`,
		},
		"2": {
			Constraint: "later_customer",
			Text:       `update or delete on table "customers" violates foreign key constraint "later_customer" on table "later"`,
		},
		"3": {Table: "public.customers", Text: "customer 3 has a contract"},
		"4": {Table: "public.customers", Text: "customers/4 is there after the statement"},
	} {
		_, err := a.Delete("//" + crm + "/customers/" + name)
		var kept *peer.KeptError
		require.ErrorAs(t, err, &kept, name)
		require.Equal(t, want, *kept, name)
	}
	id := uuid.Must(uuid.NewV7())
	for range 2 { // the refusal is definite, and kept with the request
		_, err := a.Stores[a.ID(crm)].Deletions.Delete(t.Context(), shadow.DeleteRequest{
			Name:      "customers/1",
			RequestID: id,
		})
		require.ErrorContains(t, err,
			"a row of public.customers cannot be deleted or changed: the constraint notes_customer keeps it: ")
	}
	a.exec(a.crm,
		`DELETE FROM notes; DELETE FROM later; DROP TRIGGER contract ON customers; DROP TRIGGER stays ON customers; CREATE RULE stays AS ON DELETE TO customers WHERE OLD.id = 4 DO INSTEAD NOTHING`)
	_, err := a.Delete("//" + crm + "/customers/1")
	require.ErrorContains(t, err, "the table has rules, which attach refuses: drop them")
	a.exec(a.crm, `DROP RULE stays ON customers`)
	for _, name := range []string{"1", "2", "3", "4"} {
		require.True(t, a.MustDelete("//"+crm+"/customers/"+name).Removed, name)
	}
	require.Empty(t, a.rows(a.crm, `SELECT id::text FROM customers`))
	a.Audit()
}
