package retry

// Halves runs a batch and, when it fails, each of its halves, so that an element that makes it fail does not
// keep back the others (I20).
type Halves[T any] struct {
	Run func(part []T) error
	// Whole reports whether an error is of the whole batch: no element is the cause of it, and every part
	// would have it.
	Whole func(err error) bool
	// Failed takes the error of a single element. Its own error ends the whole.
	Failed func(one T, err error) error
	// Stop, when set, reports between two halves that there is no time for more.
	Stop func() bool
}

// Do runs h over a batch, and returns the elements that it did not reach. It fails with an error of the whole
// batch.
func (h Halves[T]) Do(batch []T) (left []T, err error) {
	err = h.Run(batch)
	switch {
	case err == nil:
		return nil, nil
	case len(batch) == 0 || h.Whole(err):
		return nil, err
	case len(batch) == 1:
		return nil, h.Failed(batch[0], err)
	}
	first, second := batch[:len(batch)/2], batch[len(batch)/2:]
	if left, err = h.Do(first); err != nil {
		return nil, err
	}
	if len(left) > 0 || h.Stop != nil && h.Stop() {
		return append(left, second...), nil
	}
	return h.Do(second)
}
