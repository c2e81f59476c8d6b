package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/internal/retry"
	"github.com/db-controller/db-controller/schema"
	resourcev1 "github.com/db-controller/db-controller/schema/schemapb/dbcontroller/resource/v1"
)

// tryTimeout bounds the first try of a call; a try after one that ran out of time has twice as much, so that
// a large write ends. patience bounds all tries of a call whose context has no deadline.
const (
	tryTimeout = 15 * time.Second
	patience   = time.Minute
)

type requestIDKey struct{}

// WithRequestID returns a context in which a write or a delete has the given request id. An application that
// keeps the id before the call can repeat the request after a crash: it takes effect at most once. id is a
// UUID.
func WithRequestID(ctx context.Context, id uuid.UUID) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id.String())
}

// requestID returns the request id of a context, or a new one.
func requestID(ctx context.Context) string {
	if id, ok := ctx.Value(requestIDKey{}).(string); ok {
		return id
	}
	return uuid.NewString()
}

// checkSize refuses a request that is larger than a server receives, before it is sent. The server's own
// answer, RESOURCE_EXHAUSTED, also has reasons that pass.
func checkSize(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	if m, ok := req.(proto.Message); ok {
		if size := proto.Size(m); size > identity.MaxRequestBytes {
			return status.Errorf(codes.InvalidArgument, "a request has %d bytes at most, this one has %d: send less",
				identity.MaxRequestBytes, size)
		}
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

// send makes one try of a call.
type send func(ctx context.Context, door resourcev1.ResourceServiceClient) error

// untilDefinite repeats a call until its answer is definite (docs/guarantees.md), or ctx ends. Each
// deployment of a service is a door to the others: after a try that was not answered, the next one goes
// through another region.
func (c *Client) untilDefinite(ctx context.Context, home schema.DeploymentID, id string, try send) error {
	return c.throughDoors(ctx, c.doors, home, id, try)
}

// throughDoors is untilDefinite through some of the doors.
func (c *Client) throughDoors(ctx context.Context, doors doorsTo, home schema.DeploymentID, id string, try send) error {
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	pauses := retry.Backoff{First: 20 * time.Millisecond, Max: 2 * time.Second}
	var last error
	limit := tryTimeout
	for n := 0; ; n++ {
		err := c.once(ctx, limit, doors, home, n, try)
		if errors.Is(err, ErrClosed) && last != nil {
			return fmt.Errorf("%w: the outcome is unknown (request id %q); the last answer was: %w", err, id, last)
		}
		if err == nil || isDefinite(err) {
			return err
		}
		if last == nil || ctx.Err() == nil { // the end of ctx says less than the answer before
			last = err
		}
		if ctx.Err() != nil || pauses.Wait(ctx) != nil {
			return unknownOutcome(ctx, last, id)
		}
		if status.Code(err) == codes.DeadlineExceeded {
			limit *= 2
		}
		c.forgetEnvironment()
	}
}

// isDefinite reports whether a call that failed with err is not worth another try.
func isDefinite(err error) bool {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.Definite()
	}
	return errors.As(err, new(*UnregisteredError)) || errors.Is(err, ErrClosed)
}

// once makes the n-th try within a limit, through the door whose turn it is.
func (c *Client) once(ctx context.Context, limit time.Duration, doorsOf doorsTo, home schema.DeploymentID, n int,
	try send,
) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	doors, err := doorsOf(ctx, home)
	if err != nil {
		return err
	}
	at := doors[n%len(doors)]
	door, err := c.Resources(ctx, at)
	if err != nil {
		return err
	}
	return errorOf(try(ctx, door), at)
}

// doorsTo returns the deployments through which the resources of one can be reached, at least one.
type doorsTo func(ctx context.Context, home schema.DeploymentID) ([]schema.DeploymentID, error)

func (c *Client) ownDoor(_ context.Context, home schema.DeploymentID) ([]schema.DeploymentID, error) {
	return []schema.DeploymentID{home}, nil
}

// doors returns the deployments through which the resources of home can be reached: the preferred region,
// home, and the other regions of its service.
func (c *Client) doors(ctx context.Context, home schema.DeploymentID) ([]schema.DeploymentID, error) {
	env, err := c.Environment(ctx)
	if err != nil {
		return nil, err
	}
	if _, listed := env.Deployment(home); !listed {
		return nil, unregistered(env, home)
	}
	var doors []schema.DeploymentID
	for _, d := range env.Deployments {
		if d.Service == home.Service && c.reaches(d) {
			doors = append(doors, d.DeploymentID)
		}
	}
	if len(doors) == 0 {
		return nil, fmt.Errorf("no deployment of %s has an address yet", home.Service)
	}
	slices.SortStableFunc(doors, func(a, b schema.DeploymentID) int {
		return cmp.Compare(c.distance(a, home), c.distance(b, home))
	})
	return doors, nil
}

// distance orders the doors to a deployment.
func (c *Client) distance(door, home schema.DeploymentID) int {
	switch {
	case door.Region == c.region:
		return 0
	case door == home:
		return 1
	}
	return 2
}

// ended is the error of a context, in words.
type ended struct{ err error }

func (e ended) Error() string {
	if errors.Is(e.err, context.DeadlineExceeded) {
		return "no definite answer in time"
	}
	return "interrupted"
}

func (e ended) Unwrap() error { return e.err }

// unknownOutcome is the error of a call whose context ended before its answer was definite. Its parts are the
// error of ctx and the last answer.
func unknownOutcome(ctx context.Context, last error, id string) error {
	if id == "" {
		return fmt.Errorf("%w; the last answer was: %w", ended{ctx.Err()}, last)
	}
	if e := (*Error)(nil); errors.As(last, &e) {
		e.RequestID = id
	}
	return fmt.Errorf("%w: the outcome is unknown; repeat the request with the request id %s; the last answer was: %w",
		ended{ctx.Err()}, id, last)
}
