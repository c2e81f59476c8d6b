// Package schema holds the words of db-controller: names, kinds, behaviours, references, service descriptors and the
// environment of deployments. It has values only: it parses and checks, and does no I/O. Everything else imports it;
// it imports nothing of the project.
package schema
