// Package schema has the types that all other packages share: names, kinds, behaviours, references,
// descriptors of service versions, the environment of deployments, and events of watches. It has values only:
// it parses, validates and compiles them, and does no I/O. It imports no other package of the project.
package schema
