// Package access decides which calls a caller may make on which resources, by the rights that the environment
// declares and, where there is one, by an authorization service outside. Its interceptors run last, after a
// request was forwarded: each deployment decides about its own resources.
package access

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/db-controller/db-controller/internal/auditlog"
	"github.com/db-controller/db-controller/internal/identity"
	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/grant"
	"github.com/db-controller/db-controller/schema/peer"
)

// Environments are the environments that this deployment receives, as package peers keeps them.
type Environments interface {
	Environment() *schema.Environment
	// Changed returns a channel that is closed when a newer environment arrives.
	Changed() <-chan struct{}
}

// Authorizer decides outside of this process. It can only deny: a call that the grants deny stays denied.
type Authorizer interface {
	// Authorize decides about each name.
	Authorize(ctx context.Context, who grant.Subject, verb schema.Verb, names []schema.FullName) ([]bool, error)
	// Ranges returns the names of a kind of a deployment for which Authorize would allow the verb.
	Ranges(ctx context.Context, who grant.Subject, verb schema.Verb, of schema.DeploymentID,
		kind string) ([]grant.NameRange, error)
}

// Config of Access.
type Config struct {
	Deployment   schema.DeploymentID
	Environments Environments
	// Outside is nil without an authorization service.
	Outside Authorizer
	// Tokens verifies the tokens of people whom other deployments speak for; nil: their word is believed.
	Tokens Tokens
	// Credentials have the authorities of the signatures of operators; nil: none is accepted.
	Credentials *identity.Credentials
	Logger      *zap.Logger
	// AuditLog records calls; nil: none.
	AuditLog *auditlog.Log
	// FinalizerHolder returns the identity that may remove a finalizer of a resource here (its relative
	// name); empty for none. It fails when this process does not know the version that runs. Nil: none.
	FinalizerHolder func(ctx context.Context, name, finalizer string) (string, error)
	// TokenKeys returns the keys of the tokens of the database, of which the first one makes tokens. Nil:
	// page tokens can be read.
	TokenKeys func(ctx context.Context) ([][]byte, error)
}

// Access holds the rights of the newest environment.
type Access struct {
	cfg Config
	// audit has a line for each delete and operate, and for each denial within denials.
	audit   *zap.Logger
	denials denials
	pages   pageTokens

	mu     sync.Mutex
	of     *schema.Environment // guarded by mu; that rights were compiled from
	rights *grant.Rights       // guarded by mu
}

// New returns the access to one deployment.
func New(cfg Config) *Access {
	sampled := zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(core, time.Second, 10, 0)
	})
	return &Access{
		cfg: cfg, audit: cfg.Logger.Named("audit").WithOptions(sampled),
		denials: denials{of: map[identity.Identity]*denied{}}, pages: pageTokens{keys: cfg.TokenKeys},
	}
}

// current returns the rights of the newest environment.
func (a *Access) current() *grant.Rights {
	env := a.cfg.Environments.Environment()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of != env {
		a.of, a.rights = env, grant.Compile(env)
	}
	return a.rights
}

func subject(c identity.Caller) grant.Subject {
	return grant.Subject{Identity: c.Identity.String(), Groups: c.Groups}
}

// Authorize reports for each resource whether a caller has a right on it, whether or not the resource exists.
// All rights at a server are decided here and in Within, which is the same for all names of a kind.
func (a *Access) Authorize(ctx context.Context, who identity.Caller, verb schema.Verb,
	names []schema.FullName,
) ([]bool, error) {
	rights, allowed := a.current(), make([]bool, len(names))
	var ask []schema.FullName
	for i, name := range names {
		if allowed[i] = rights.Authorize(subject(who), verb, name); allowed[i] {
			ask = append(ask, name)
		}
	}
	if a.cfg.Outside == nil || len(ask) == 0 || who.Role == identity.RoleOperator {
		return allowed, nil
	}
	answers, err := a.cfg.Outside.Authorize(ctx, subject(who), verb, ask)
	if err != nil {
		return nil, a.undecided(err)
	}
	for i := range allowed {
		if allowed[i] {
			allowed[i], answers = answers[0], answers[1:]
		}
	}
	return allowed, nil
}

// deletes reports for each resource whether a caller may delete it. An authorization service knows only
// resources of this deployment.
func (a *Access) deletes(ctx context.Context, who identity.Caller, names []schema.FullName) ([]bool, error) {
	var here []schema.FullName
	for _, name := range names {
		if name.Deployment == a.cfg.Deployment {
			here = append(here, name)
		}
	}
	allowed, err := a.Authorize(ctx, who, schema.Delete, here)
	if err != nil {
		return nil, err
	}
	rights, out := a.current(), make([]bool, len(names))
	for i, name := range names {
		if name.Deployment != a.cfg.Deployment {
			out[i] = rights.Authorize(subject(who), schema.Delete, name)
			continue
		}
		out[i], allowed = allowed[0], allowed[1:]
	}
	return out, nil
}

// deletesKind reports whether a caller may delete all resources of a kind in a deployment.
func (a *Access) deletesKind(ctx context.Context, who identity.Caller, at schema.DeploymentID,
	kind string,
) (bool, error) {
	all := []grant.NameRange{grant.AllNames}
	if !slices.Equal(a.current().Ranges(subject(who), schema.Delete, at, kind), all) {
		return false, nil
	}
	if a.cfg.Outside == nil || at != a.cfg.Deployment || who.Role == identity.RoleOperator {
		return true, nil
	}
	ranges, err := a.cfg.Outside.Ranges(ctx, subject(who), schema.Delete, at, kind)
	if err != nil {
		return false, a.undecided(err)
	}
	return slices.Equal(grant.JoinedRanges(ranges), all), nil
}

// Within returns the names here that a caller may read, by kind; nil for all.
func (a *Access) Within(ctx context.Context, who identity.Caller) (grant.Within, error) {
	self := a.cfg.Deployment
	within := a.granted(who)
	if a.cfg.Outside == nil || who.Role == identity.RoleOperator {
		return within, nil
	}
	out := grant.Within{}
	for _, kind := range schema.NewKinds(a.cfg.Environments.Environment().Services).Names(self.Service) {
		ranges, err := a.cfg.Outside.Ranges(ctx, subject(who), schema.Read, self, kind)
		if err != nil {
			return nil, a.undecided(err)
		}
		out[kind] = grant.CommonRanges(within.Of(kind), ranges)
	}
	return out, nil
}

// granted returns the names here that a caller may read by the grants alone, by kind; nil for all.
func (a *Access) granted(who identity.Caller) grant.Within {
	return a.current().Within(subject(who), schema.Read, a.cfg.Deployment)
}

// undecided returns the error of a call that the authorization service did not decide about. Its own error is
// for the log.
func (a *Access) undecided(err error) error {
	a.audit.Warn("the authorization service did not decide", zap.Error(err))
	return peer.ErrAuthorizer
}

// DeniedError denies a call. It is the same whether or not the resources exist.
type DeniedError struct {
	Who   string
	Verb  schema.Verb
	Names []schema.FullName
}

func (e *DeniedError) Error() string {
	names := make([]string, 0, len(e.Names))
	for _, n := range e.Names[:min(len(e.Names), maxNamed)] {
		names = append(names, n.String())
	}
	text := fmt.Sprintf("%s has no right to %s %s", e.Who, e.Verb, strings.Join(names, ", "))
	if more := len(e.Names) - len(names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text + ": " + peer.ErrDenied.Error()
}

func (e *DeniedError) Unwrap() error { return peer.ErrDenied }

// maxNamed is the number of names in the text of an error.
const maxNamed = 5

// demand returns an error unless the caller has a right on all names.
func (a *Access) demand(ctx context.Context, who identity.Caller, method string, d demand) error {
	allowed, err := a.Authorize(ctx, who, d.verb, d.names)
	if err != nil {
		return err
	}
	denied := &DeniedError{Who: who.Identity.String(), Verb: d.verb}
	for i, ok := range allowed {
		if !ok {
			denied.Names = append(denied.Names, d.names[i])
		}
	}
	if len(denied.Names) > 0 {
		a.denied(ctx, who, method, demand{verb: d.verb, names: denied.Names})
		return denied
	}
	if len(d.names) > 0 && (d.verb == schema.Delete || d.verb == schema.Operate) {
		a.cfg.Logger.Named("audit").Info("allowed", append(fieldsOf(ctx, who, method, d),
			zap.Stringer("first", d.names[0]))...)
	}
	return nil
}
