package shadow_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/shadow"
)

// Rooms share methods that work in a transaction of their caller. They are no methods of the store.
func TestTheStoreHasNoMethodsForItsRooms(t *testing.T) {
	t.Parallel()
	store := reflect.TypeFor[*shadow.Store]()
	for i := range store.NumMethod() {
		m := store.Method(i)
		if m.Name == "InTx" { // export_test.go
			continue
		}
		for _, p := range parameters(m.Type) {
			require.NotContains(t, p.PkgPath(), "jackc/pgx", "%s has a parameter %s", m.Name, p)
			require.False(t, strings.HasSuffix(p.PkgPath(), "/internal/db") && p.Name() != "Leases", "%s has a parameter %s", m.Name, p)
		}
	}
	require.Positive(t, store.NumMethod())
	for i := range store.Elem().NumField() {
		require.False(t, store.Elem().Field(i).IsExported(), "the room %s is a field that callers see", store.Elem().Field(i).Name)
	}
}

// parameters returns the types of the parameters and results, without pointers.
func parameters(f reflect.Type) (all []reflect.Type) {
	for i := range f.NumIn() {
		all = append(all, f.In(i))
	}
	for i := range f.NumOut() {
		all = append(all, f.Out(i))
	}
	for i := range all {
		for all[i].Kind() == reflect.Pointer || all[i].Kind() == reflect.Slice {
			all[i] = all[i].Elem()
		}
	}
	return all
}
