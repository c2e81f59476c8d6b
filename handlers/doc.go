// Package handlers has what a node does with what it sees, one file a handler. A handler is given keys in batches,
// reads again what they come to, does it in set-based transactions, and can be given the same keys any number of
// times. It keeps no state.
package handlers
