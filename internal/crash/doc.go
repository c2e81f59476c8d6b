// Package crash has named points, each between two steps, at which a test build of the program can be killed.
// They exist with the build tag crashpoints only; without it At does nothing, and the program contains no
// names of points.
//
// DBCONTROLLER_CRASH names a point: the process is killed with SIGKILL when it reaches the point.
// DBCONTROLLER_CLOCK is an offset of the process's clock. Such a build gathers requests from the second one
// on, not from the fifth.
package crash
