//go:build !linux

package harness

import "errors"

func mountSmallDisk(string, int64) error { return errors.ErrUnsupported }

func unmountSmallDisk(string) error { return nil }
