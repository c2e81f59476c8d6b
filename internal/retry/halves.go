package retry

// Halves runs a batch and, when it fails, each of its halves, so that an element that makes it fail does not keep back the
// others (I20).
type Halves struct {
	Run func(part []int64) error
	// Whole reports whether an error is of the whole batch: no element is the cause of it, and every part would have it.
	Whole func(err error) bool
	// Failed takes the error of a single element. Its own error ends the whole.
	Failed func(id int64, err error) error
	// Stop, when set, reports between two halves that there is no time for more.
	Stop func() bool
}

// Do runs h over ids, and returns the ids that it did not reach. It fails with an error of the whole batch.
func (h Halves) Do(ids []int64) (left []int64, err error) {
	err = h.Run(ids)
	switch {
	case err == nil:
		return nil, nil
	case len(ids) == 0 || h.Whole(err):
		return nil, err
	case len(ids) == 1:
		return nil, h.Failed(ids[0], err)
	}
	first, second := ids[:len(ids)/2], ids[len(ids)/2:]
	if left, err = h.Do(first); err != nil {
		return nil, err
	}
	if len(left) > 0 || h.Stop != nil && h.Stop() {
		return append(left, second...), nil
	}
	return h.Do(second)
}
