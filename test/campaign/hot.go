package campaign

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// verb is an operation of a client on a hot target.
type verb int

const (
	create verb = iota
	refer
	dropReferences
	remove
)

func (v verb) String() string { return [...]string{"create", "refer", "let go", "delete"}[v] }

// hotCall is an operation on a target by one client's holder.
type hotCall struct {
	verb   verb
	target int
	holder uint
}

// outcome of a call. An unknown operation may have taken effect, may not have, or may still do so.
type outcome int

const (
	done outcome = iota
	refused
	unknown
)

// hotState of a target: whether it exists, and which holders refer to it. Late holders have dropped their
// references, but the target's deployment may not know it yet, and refuses a delete while it cannot ask.
type hotState struct {
	there         bool
	holders, late uint32
}

// hotModel defines the sequential behaviour of one target that several clients create, refer to and delete.
var hotModel = (&porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		by := map[int][]porcupine.Operation{}
		for _, op := range history {
			target := op.Input.(hotCall).target
			by[target] = append(by[target], op)
		}
		var out [][]porcupine.Operation
		for _, ops := range by {
			out = append(out, ops)
		}
		return out
	},
	Init: func() []any { return []any{hotState{}} },
	Step: func(state, input, output any) []any {
		before, call := state.(hotState), input.(hotCall)
		after, possible := before.after(call)
		switch output.(outcome) {
		case done:
			if !possible {
				return nil
			}
			return []any{after}
		case refused:
			if possible && (call.verb != remove || before.late == 0) {
				return nil
			}
			return []any{before}
		default:
			if !possible || after == before {
				return []any{before}
			}
			return []any{before, after}
		}
	},
	DescribeOperation: func(input, output any) string {
		c := input.(hotCall)
		return fmt.Sprintf("%s %d (holder %d): %s", c.verb, c.target, c.holder,
			[...]string{"done", "refused", "unknown"}[output.(outcome)])
	},
}).ToModel()

func (s hotState) after(c hotCall) (hotState, bool) {
	switch c.verb {
	case create:
		s.there = true
	case refer:
		if !s.there {
			return s, false
		}
		s.holders |= 1 << c.holder
	case dropReferences:
		s.late |= s.holders & (1 << c.holder)
		s.holders &^= 1 << c.holder
	case remove:
		if s.holders != 0 {
			return s, false
		}
		s.there, s.late = false, 0
	}
	return s, true
}

// Hot lets several clients concurrently create, refer to, drop and delete a few targets, and fails unless
// their answers are linearizable (Herlihy and Wing 1990; the checker is porcupine).
func Hot(ctx context.Context, t testing.TB, w *World, c *Coverage, r *rand.Rand, calls int) {
	t.Helper()
	const clients, targets = 8, 3
	var (
		mu      sync.Mutex
		history []porcupine.Operation
		wg      sync.WaitGroup
	)
	began := time.Now()
	for client := range clients {
		r := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
		holder := deployments[client%len(deployments)]
		target := client % targets
		wg.Go(func() {
			for range calls {
				call := hotCall{target: target, holder: uint(client)} //nolint:gosec // small
				switch n := r.IntN(10); {
				case n < 2:
					call.verb = create
				case n < 6:
					call.verb = refer
				case n < 8:
					call.verb = dropReferences
				default:
					call.verb = remove
				}
				op := porcupine.Operation{ClientId: client, Input: call, Call: time.Since(began).Nanoseconds()}
				answer := hotDo(ctx, w, call, holder)
				if op.Output, op.Return = answer, time.Since(began).Nanoseconds(); answer == unknown {
					op.Return = time.Hour.Nanoseconds()
				}
				c.add(fmt.Sprintf("hot: %s %s", call.verb, [...]string{"done", "refused", "unknown"}[answer]), 1)
				mu.Lock()
				history = append(history, op)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	result, info := porcupine.CheckOperationsVerbose(hotModel, history, 20*time.Second)
	c.add("hot: histories "+string(result), 1)
	if result == porcupine.Illegal {
		file := t.TempDir() + "/hot.html"
		_ = porcupine.VisualizePath(hotModel, info, file)
		for _, op := range history {
			t.Logf("%8.1f to %8.1f ms  client %d  %s", float64(op.Call)/1e6, float64(op.Return)/1e6, op.ClientId,
				hotModel.DescribeOperation(op.Input, op.Output))
		}
		require.Fail(t, "the answers of clients are not linearizable (I2, I3)")
	}
}

func hotDo(ctx context.Context, w *World, c hotCall, holder schema.DeploymentID) outcome {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	home := deployments[c.target%2] // of service a, which b imports
	target := fmt.Sprintf("//%s/nodes/hot%d", home, c.target)
	put := func(at schema.DeploymentID, name string, body map[string]any) error {
		s, err := structpb.NewStruct(body)
		if err != nil {
			return err
		}
		_, err = w.resources(ctx, at).PutResource(ctx, &resourcev1.PutResourceRequest{
			Resource: &resourcev1.Resource{Name: name, Body: s}, RequestId: uuid.NewString(),
		})
		return err
	}
	var err error
	switch c.verb {
	case create:
		err = put(home, fmt.Sprintf("nodes/hot%d", c.target), nil)
	case refer:
		err = put(holder, fmt.Sprintf("nodes/holder%d", c.holder), map[string]any{"b1": target})
	case dropReferences:
		err = put(holder, fmt.Sprintf("nodes/holder%d", c.holder), nil)
	case remove:
		_, err = w.resources(ctx, home).DeleteResource(ctx, &resourcev1.DeleteResourceRequest{Name: target})
	}
	switch {
	case err == nil, c.verb == remove && status.Code(err) == codes.NotFound:
		return done
	case status.Code(err) == codes.FailedPrecondition && (c.verb == refer || c.verb == remove):
		return refused
	}
	return unknown
}
