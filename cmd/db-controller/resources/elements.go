package resources

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// element is an element of a list in a body, by its index or its value: spec.policies[0],
// policies[=//iam.example.com/eu/policies/p].
type element struct {
	text  string
	list  []string // the fields that lead to the list
	index int
	value *string // in place of the index
}

var errElement = errors.New(
	"want PATH[INDEX] or PATH[=VALUE] at its end, such as policies[0] or policies[=//iam.example.com/eu/policies/p]")

func parseElement(text string) (element, error) {
	list, in, opened := strings.Cut(text, "[")
	in, closed := strings.CutSuffix(in, "]")
	if !opened || !closed || list == "" {
		return element{}, errElement
	}
	e := element{text: text, list: strings.Split(list, ".")}
	if value, is := strings.CutPrefix(in, "="); is {
		e.value = &value
		return e, nil
	}
	var err error
	if e.index, err = strconv.Atoi(in); err != nil || e.index < 0 {
		return element{}, errElement
	}
	return e, nil
}

// conflicts is how often a patch is tried while others change the resource.
const conflicts = 10

// withoutElements updates a resource, and removes elements of its lists. It reads the lists first, and the
// update holds for the revision that was read: when another update came in between, it reads and updates
// again. The elements are removed from the revision that was read.
func withoutElements(ctx context.Context, c resourcev1.ResourceServiceClient, update *resourcev1.UpdateResourceRequest,
	elements []element,
) (*resourcev1.Resource, error) {
	if len(elements) == 0 {
		return c.UpdateResource(ctx, update)
	}
	for try := 1; ; try++ {
		stored, err := c.GetResource(ctx, &resourcev1.GetResourceRequest{
			Name:   update.GetResource().GetName(),
			Latest: true,
		})
		if err != nil {
			return nil, err
		}
		next := proto.CloneOf(update)
		if err := removeElements(stored, next, elements); err != nil {
			return nil, err
		}
		r, err := c.UpdateResource(ctx, next)
		if status.Code(err) != codes.Aborted || try == conflicts {
			return r, err
		}
	}
}

// removeElements adds to an update the lists of a stored resource without the elements.
func removeElements(stored *resourcev1.Resource, update *resourcev1.UpdateResourceRequest, elements []element) error {
	gone := map[string][]int{} // by list
	lists := map[string][]any{}
	for _, e := range elements {
		list := strings.Join(e.list, ".")
		var at any = stored.GetBody().AsMap()
		for _, field := range e.list {
			fields, _ := at.(map[string]any)
			at = fields[field]
		}
		values, is := at.([]any)
		if !is {
			return cli.WithCode(cli.Refused, fmt.Errorf("--unset %s: %s is no list in the stored body", e.text, list))
		}
		found := e.in(values)
		if len(found) == 0 {
			return cli.WithCode(cli.Refused, fmt.Errorf("--unset %s: the list %s has %s, and none of them is that one",
				e.text, list, cli.Plural(len(values), "element")))
		}
		lists[list], gone[list] = values, append(gone[list], found...)
	}
	body := update.GetResource().GetBody().AsMap()
	for list, values := range lists {
		var left []any
		for i, value := range values {
			if !slices.Contains(gone[list], i) {
				left = append(left, value)
			}
		}
		if left == nil {
			left = []any{}
		}
		if err := setField(body, strings.Split(list, "."), left); err != nil {
			return cli.Usage("--unset %s: %w", list, err)
		}
		update.UpdateMask.Paths = append(update.UpdateMask.Paths, "body."+list)
	}
	var err error
	update.Resource.Body, err = toStruct("body", body)
	update.Resource.Uid, update.Resource.Revision = stored.GetUid(), stored.GetRevision()
	return err
}

// in returns the indices of the element in a list.
func (e element) in(values []any) (found []int) {
	for i, value := range values {
		if e.value == nil && i == e.index || e.value != nil && fmt.Sprint(value) == *e.value {
			found = append(found, i)
		}
	}
	return found
}
