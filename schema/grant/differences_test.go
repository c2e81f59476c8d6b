package grant_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/grant"
)

func TestDifferencesNameWhoGainsAndWhoLoses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, before, after string
		want                []string
	}{
		{
			"an equal declaration in other words",
			"rights: {default: deny, grants: [{identity: user/ann, verbs: [read, write], name: projects/acme}]}",
			"rights: {default: deny, grants: [{identity: user/ann, verbs: [write], name: projects/acme}, {identity: user/ann, verbs: [read], kind: '*', name: projects/acme}]}",
			[]string{"nobody gains or loses a right"},
		},
		{
			"by the former name of a kind",
			"rights: {default: deny, grants: [{group: g, verbs: [read], kind: devices.example.com/Gadget}]}",
			"rights: {default: deny, grants: [{group: g, verbs: [read], kind: devices.example.com/Device}]}",
			[]string{"nobody gains or loses a right"},
		},
		{
			"covered by everybody's",
			"rights: {default: deny, grants: [{identity: '*', verbs: [read]}, {identity: user/ann, verbs: [read]}]}",
			"rights: {default: deny, grants: [{identity: '*', verbs: [read]}]}",
			[]string{"nobody gains or loses a right"},
		},
		{
			"a longer prefix",
			"rights: {default: deny, grants: [{identity: user/ann, verbs: [read], name: 'projects/a*'}]}",
			"rights: {default: deny, grants: [{identity: user/ann, verbs: [read], name: 'projects/ab*'}]}",
			[]string{"user/ann loses read on everything with names projects/a*"},
		},
		{
			"the default", "rights: {default: allow, grants: [{identity: user/ann, verbs: [read]}]}",
			"rights: {default: deny}",
			[]string{
				"every user loses read, write, delete where no grant allows it",
				"everybody loses refer where no grant allows it: the default is deny",
				"user/ann loses read on everything",
			},
		},
		{
			"what a cascade needs", "rights: {default: deny}", "rights: {default: deny, cascade_needs_delete: true}",
			[]string{"everybody loses the right to delete what takes resources along that the caller may not delete"},
		},
		{
			"decisions of two operators", "rights: {two_operators: [force-release]}",
			"rights: {two_operators: [decommission]}",
			[]string{"decommission needs two operators", "force-release needs one operator, no longer two"},
		},
		{
			"quotas", "rights: {quotas: [{holders: '*/*', targets: a.example.com/*, blocking: 5}]}",
			"rights: {quotas: [{holders: '*/*', targets: a.example.com/*, blocking: 6, tentative: 7}]}",
			[]string{
				"a new quota: */* to resources of a.example.com/*: at most 6 blocking references and 7 references under way", "no longer a quota: */* to resources of a.example.com/*: at most 5 blocking references",
			},
		},
		{
			"the size of a delete", "rights: {default: deny}", "rights: {default: deny, max_removals: 1000}",
			[]string{
				"a delete removes at most 1000 resources, was any number of resources, unless its request has a number",
			},
		},
		{
			"operate needs a grant always", "rights: {default: allow}",
			"rights: {default: allow, grants: [{identity: '*', verbs: [operate, delete], kind: 'iam.example.com/*', name: projects/x}]}",
			[]string{"everybody gains operate on iam.example.com/* at and below projects/x"},
		},
	} {
		require.Equal(t, c.want, grant.Differences(environment(t, c.before), environment(t, c.after)), c.name)
	}
	none := environment(t, "rights: {default: allow}")
	none.Rights = nil
	require.Equal(t, []string{"user/ann gains read, operate on everything"},
		grant.Differences(none, environment(t, "rights: {grants: [{identity: user/ann, verbs: [read, operate]}]}")))
}

func TestHoldersAreWhoMayByAGrant(t *testing.T) {
	t.Parallel()
	env := environment(t, declared)
	who := func(verb schema.Verb, name string) (out []string, open bool) {
		holders, open := grant.Holders(env, verb, schema.FullName{Deployment: devices, Name: name})
		for _, h := range holders {
			out = append(out, h.Who)
		}
		return out, open
	}
	found, open := who(schema.Read, "projects/acme/devices/d1")
	require.Equal(t, []string{"user/ann", "user/old"}, found)
	require.False(t, open)
	found, _ = who(schema.Delete, "projects/team-a")
	require.Equal(t, []string{"group sre"}, found)
	found, _ = who(schema.Refer, "projects/shared/devices/d")
	require.Equal(t, []string{"everybody"}, found)
	found, _ = who(schema.Write, "projects/other")
	require.Empty(t, found)
	env.Rights = nil
	_, open = who(schema.Write, "projects/other")
	require.False(t, open)
	env.Rights = &schema.Rights{Allow: true}
	_, open = who(schema.Write, "projects/other")
	require.True(t, open)
	_, open = who(schema.Operate, "projects/other")
	require.False(t, open)
}
