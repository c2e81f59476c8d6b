package serve

import (
	"context"
	"fmt"
	"net"

	"go.uber.org/zap"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/schema"
)

// exposure is one way into a process, or to its data.
type exposure struct {
	way, to string
	open    bool // more than a careful operator would allow; the text names the remedy
}

// exposures lists the ways into the process of a deployment by its configuration, in the order of its
// listeners. It opens none.
func (c *deploymentConfig) exposures() []exposure {
	people := "users and operators with a certificate"
	if c.server.tokens != "" {
		people += ", or a token of " + c.server.tokens
	}
	out := []exposure{{way: "gRPC on " + c.server.listen, to: "deployments of the environment; " + people}}
	if c.server.reflection {
		out = append(out, exposure{way: "gRPC reflection", to: "users and operators"})
	}
	if c.api.listen != "" {
		out = append(out, exposure{way: "HTTPS API on " + c.api.listen, to: "users with a token of " + c.server.tokens})
	}
	if c.api.console {
		what, which := "shows", "this deployment"
		if c.api.actions {
			what = "shows and changes"
		}
		if c.api.all {
			which = "all deployments"
		}
		out = append(out, exposure{
			way: "console on " + c.api.listen,
			to:  fmt.Sprintf("users with a token, by their rights; it %s %s", what, which),
		})
	}
	if c.server.http != "" {
		out = append(out, exposure{way: "HTTP on " + c.server.http, to: reachedBy(c.server.http) +
			", without authentication: health and metrics"})
	}
	if c.server.pprof != "" {
		out = append(out, exposure{way: "profiles on " + c.server.pprof, to: "everybody on this machine"})
	}
	if c.server.audit.sink == "" {
		out = append(out,
			exposure{
				way: "audit",
				to:  "deletes, operations and denials are in this log; reads and writes are not recorded (--audit-log)",
			})
	}
	return out
}

// reachedBy says who reaches an address.
func reachedBy(address string) string {
	host, _, _ := net.SplitHostPort(address)
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return "everybody on this machine"
	}
	return "everybody who reaches the address"
}

// exposureOf describes the access that the rights of an environment open.
func exposureOf(rights *schema.Rights) exposure {
	switch {
	case rights == nil:
		return exposure{way: "rights", to: "no user, and every operator: no rights are declared"}
	case rights.Allow && !rights.Deny:
		return exposure{
			way: "rights", open: true,
			to: "every user may read, write and delete every resource: the rights say default: allow",
		}
	case len(rights.Operators) == 0:
		return exposure{way: "rights", to: fmt.Sprintf("users by %s; every operator may do everything",
			cli.Plural(len(rights.Grants), "grant"))}
	}
	return exposure{way: "rights", to: fmt.Sprintf("users by %s; %s by their verbs",
		cli.Plural(len(rights.Grants), "grant"), cli.Plural(len(rights.Operators), "operator"))}
}

const loginSQL = `SELECT current_user, rolsuper FROM pg_roles WHERE rolname = current_user`

// login returns the role of the connections of a context.
func (d *deployment) login(ctx context.Context, of string) exposure {
	var role string
	var superuser bool
	if err := d.pool.QueryRow(ctx, loginSQL).Scan(&role, &superuser); err != nil {
		role = "a role that cannot be read now"
	}
	e := exposure{way: "database", to: "this process logs in" + of + " as " + role, open: superuser}
	if superuser {
		e.to += ", a superuser: run migrate up --roles, and log in as a user with the roles _api and _controller"
	}
	return e
}

// tellExposures logs the ways into the process when it becomes ready: a line for each, with the identities
// that it is open to.
func (d *deployment) tellExposures(ctx context.Context) {
	all := d.cfg.exposures()
	if env := d.peers.Environment(); env != nil {
		all = append(all, exposureOf(env.Rights))
	}
	if d.cfg.database.controller.dsn == "" {
		all = append(all, d.login(ctx, ""))
	} else {
		all = append(all, d.login(inReads(ctx), " for calls"), d.login(ctx, " for its own work"))
	}
	for _, e := range all {
		log := d.log.Info
		if e.open {
			log = d.log.Warn
		}
		log("open to", zap.String("way", e.way), zap.String("to", e.to))
	}
}
