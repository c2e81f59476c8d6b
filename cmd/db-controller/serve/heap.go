package serve

import "runtime"

// heapFloor is how much a process allocates, at least, between two runs of the garbage collector. The heap of
// a controller at work is some 15 MB, of which small writes allocate as much several times a second: each run
// would cost more than the writes.
const heapFloor = 32 << 20

// raiseHeapFloor allocates bytes that count as live until lower is called. No code writes them, so that the
// system maps no memory for them.
func raiseHeapFloor() (lower func()) {
	floor := make([]byte, heapFloor)
	return func() { runtime.KeepAlive(floor) }
}
