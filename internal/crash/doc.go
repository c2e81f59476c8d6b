// Package crash has named points at which a test build of the program can be killed: between two steps that a crash
// could come between. They are there with the build tag crashpoints alone; without it At is nothing, and no name of a
// point is in the program.
//
// DBCONTROLLER_CRASH names a point. The process ends, as with SIGKILL, when it comes there the first time. DBCONTROLLER_CLOCK sets the
// process apart from the others in time.
package crash
