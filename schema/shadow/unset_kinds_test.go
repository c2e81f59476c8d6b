package shadow_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/test/harness"
)

const movedNames = `
service: a.example.com
version: v1
kinds: [{ kind: Target, patterns: ["targets/{target}"] }]
---
service: a.example.com
version: v2
patterns_dropped: keep
kinds: [{ kind: Target, patterns: ["others/{other}"] }, { kind: Other, patterns: ["targets/{target}"] }]
---
service: b.example.com
version: v1
imports: [a.example.com@v1]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: soft, targets: [a.example.com/Target], behaviour: UNSET }
---
service: b.example.com
version: v2
imports: [a.example.com@v2]
kinds:
  - kind: Holder
    patterns: ["holders/{holder}"]
    references:
      - { path: soft, targets: [a.example.com/Other], behaviour: UNSET }
`

// The names of the target's kind are names of another kind now, also in the holder's version: the value goes
// with the stored reference.
func TestAValueWhoseNameIsOfAnotherKindIsUnset_I1_I26(t *testing.T) {
	t.Parallel()
	b := harness.NewBox(t, movedNames, nil, aWest, bEast)
	b.MustPut(target, nil)
	b.MustPut(holder, body{"soft": target})
	b.Settle()
	b.Switch(aWest, "v2")
	b.Switch(bEast, "v2")
	b.Settle()
	b.MustDelete(target)
	b.Settle()
	b.Gone(target)
	require.Empty(t, value(t, b.Get(holder), "soft"))
	require.Zero(t, b.Count(bEast, "reference"))
	require.Zero(t, b.Count(bEast, "work"))
	b.Audit()
}
