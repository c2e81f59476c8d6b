package prepare

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/db-controller/db-controller/schema/violation"
)

// Limits of a field mask of an update or a read.
const (
	maxMaskPaths = 1000
	maxMaskBytes = 256 << 10
)

// maskField is the field of a request with the mask.
const maskField = "update_mask"

// CheckMask returns an error for a field mask with more than 1,000 paths or more than 256 KiB in all paths
// together.
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

// merge applies an update mask: fields in the mask are taken from the request, all others from the stored
// resource. A field that is in the mask and not in the request is removed (AIP-134). The mask "*" replaces
// all fields.
func (wr *Writing) merge() error {
	if slices.Contains(wr.Mask, "*") {
		return nil
	}
	if err := CheckMask(wr.Mask); err != nil {
		return violation.In(maskField, fmt.Errorf("update_mask: %w", err))
	}
	given := wr.Write
	wr.Labels, wr.Owners = maps.Clone(wr.Before.Labels), wr.Before.Owners
	wr.Body = clone(wr.Before.Body)
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
				return violation.In(maskField, fmt.Errorf("update_mask %q: %w", path, err))
			}
		default:
			return violation.In(maskField,
				fmt.Errorf("update_mask %q: want labels, labels.<key>, owner_references, body, or body.<field>", path))
		}
	}
	return nil
}

// clone copies nested messages, which replace edits; all other values are shared, since they are never edited
// in place.
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

// replace sets the field of in at a path to its value in given, or removes it when given has none.
func replace(in, given map[string]any, path []string) error {
	field := path[0]
	value, ok := given[field]
	if _, stored := in[field]; !ok && !stored && strings.Contains(field, "[") {
		return fmt.Errorf(
			"there is no field %s: a mask names fields, and no elements of a list; replace the whole list", field)
	}
	if len(path) == 1 {
		if in[field] = value; !ok {
			delete(in, field)
		}
		return nil
	}
	within, _ := value.(map[string]any)
	if ok && within == nil {
		return fmt.Errorf("field %s is not a message in the request: it has no fields", field)
	}
	below, isMessage := in[field].(map[string]any)
	if !isMessage {
		if in[field] != nil {
			return fmt.Errorf("field %s is not a message in the stored resource: it has no fields", field)
		}
		if !ok {
			return nil // neither the stored resource nor the request has the field
		}
		below = map[string]any{}
		in[field] = below
	}
	return replace(below, within, path[1:])
}
