package shadow

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Limits of the mask of an update or a read.
const (
	maxMaskPaths = 1000
	maxMaskBytes = 256 << 10
)

// CheckMask refuses a mask that has too many paths or too long ones.
func CheckMask(paths []string) error {
	if len(paths) > maxMaskPaths {
		return fmt.Errorf("%d paths, at most %d are allowed", len(paths), maxMaskPaths)
	}
	n := 0
	for _, path := range paths {
		n += len(path)
	}
	if n > maxMaskBytes {
		return fmt.Errorf("%d bytes, at most %d are allowed", n, maxMaskBytes)
	}
	return nil
}

// merge lets a masked update replace what the mask names and keep the rest. (AIP-134: what the mask names and the
// request does not have is removed.)
func (wr *writing) merge() error {
	if slices.Contains(wr.Mask, "*") {
		return nil
	}
	if err := CheckMask(wr.Mask); err != nil {
		return fmt.Errorf("update_mask: %w", err)
	}
	given := wr.Write
	wr.Labels, wr.Owners = maps.Clone(wr.before.labels), wr.before.owners
	wr.Body = clone(wr.before.body)
	for _, path := range wr.Mask {
		part, rest, _ := strings.Cut(path, ".")
		switch {
		case part == "labels" && rest == "":
			wr.Labels = given.Labels
		case part == "labels":
			if value, ok := given.Labels[rest]; !ok {
				delete(wr.Labels, rest)
			} else {
				if wr.Labels == nil {
					wr.Labels = map[string]string{}
				}
				wr.Labels[rest] = value
			}
		case path == "owner_references":
			wr.Owners = given.Owners
		case part == "body" && rest == "":
			wr.Body = given.Body
		case part == "body":
			if err := replace(wr.Body, given.Body, strings.Split(rest, ".")); err != nil {
				return fmt.Errorf("update_mask %q: %w", path, err)
			}
		default:
			return fmt.Errorf("update_mask %q: want labels, labels.<key>, owner_references, body, or body.<field>", path)
		}
	}
	return nil
}

// clone copies messages, which replace changes; values are never changed in place.
func clone(in map[string]any) map[string]any {
	out := make(map[string]any, len(in))
	for k, v := range in {
		if m, ok := v.(map[string]any); ok {
			v = clone(m)
		}
		out[k] = v
	}
	return out
}

// replace sets the field at a path as given has it, or removes it.
func replace(in, given map[string]any, path []string) error {
	field := path[0]
	value, ok := given[field]
	if len(path) == 1 {
		if in[field] = value; !ok {
			delete(in, field)
		}
		return nil
	}
	within, _ := value.(map[string]any)
	if ok && within == nil {
		return fmt.Errorf("field %s has no fields in the request", field)
	}
	below, isMessage := in[field].(map[string]any)
	if !isMessage {
		if in[field] != nil {
			return fmt.Errorf("field %s has no fields in what is stored", field)
		}
		if !ok {
			return nil // nothing there, nothing given
		}
		below = map[string]any{}
		in[field] = below
	}
	return replace(below, within, path[1:])
}
