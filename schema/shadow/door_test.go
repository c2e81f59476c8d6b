package shadow_test

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/db-controller/db-controller/schema/shadow"
)

// Callers find a method at the field of its room: the store has few methods of its own, and none in a
// transaction of the caller.
func TestTheStoreHasItsRoomsAsFields(t *testing.T) {
	t.Parallel()
	store := reflect.TypeFor[*shadow.Store]()
	for i := range store.NumMethod() {
		m := store.Method(i)
		if m.Name == "InTx" { // export_test.go
			continue
		}
		for _, p := range parameters(m.Type) {
			require.NotContains(t, p.PkgPath(), "jackc/pgx", "%s has a parameter %s", m.Name, p)
		}
	}
	rooms := 0
	for i := range store.Elem().NumField() {
		f := store.Elem().Field(i)
		require.False(t, f.Anonymous, "%s: its methods are promoted", f.Name)
		if f.IsExported() {
			rooms++
			require.Contains(t, f.Type.Elem().PkgPath(), "schema/shadow/internal/", f.Name)
		}
	}
	require.Greater(t, rooms, 10)
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
