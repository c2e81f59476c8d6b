// Package feed makes watches of tables: the state at one cut, one end of the snapshot, then every change
// after it, in order, each once, without gap, and with tokens that resume where the reader was. All watches
// use it; the packages that have the tables define the rows and the statements that read them.
//
// A table that is followed is its own log. Each of its rows carries the id of the transaction that wrote it
// (xid xid8 DEFAULT pg_current_xact_id()) and a sequence number (seq bigint GENERATED ALWAYS AS IDENTITY).
// Beside it is a table of one row, with
//
//	database_id uuid   -- the identity of this database
//	epoch       uuid   -- the epoch that was begun last
//	server      text   -- the identity of the server then (ServerSQL)
//	timeline    text   -- and its timeline
//	token_keys  bytea[] -- authenticate tokens; the first one makes them
//	compacted   xid8   -- the newest transaction whose rows may have been removed because of their age
package feed
