package operate

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/internal/approval"
	"github.com/db-controller/db-controller/internal/identity"
)

// twoOperators has the flags of a decision that one operator signs and another one sends.
type twoOperators struct {
	propose, approve string
}

func (o *twoOperators) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.propose, "propose", "",
		"where the rights ask for two operators (two_operators): sign the decision into the new `FILE`, and change nothing")
	cmd.Flags().StringVar(&o.approve, "approve", "",
		"send the decision that another operator has signed into `FILE` within the last 24 hours; needs --yes")
}

// check returns an error for flags of the decision beside --approve, whose file has them.
func (o *twoOperators) check(cmd *cobra.Command, flags ...string) error {
	if o.approve == "" {
		return nil
	}
	for _, flag := range append(flags, "propose") {
		if cmd.Flags().Changed(flag) {
			return cli.Usage("--approve sends the decision as it was signed: leave out --%s", flag)
		}
	}
	return nil
}

// order is a request of a decision, and its server (see approval.Sign).
type order struct {
	server  string
	request approval.Request
}

// write signs the requests of a decision into a new file, and prints the command for the other operator.
func (o *twoOperators) write(cmd *cobra.Command, orders ...order) error {
	if len(orders) == 0 {
		return cli.WithCode(cli.Refused, errors.New("there is nothing to decide, and nothing to sign"))
	}
	own, err := ownCertificate(cmd)
	if err != nil {
		return err
	}
	now := time.Now()
	var lines strings.Builder
	for _, one := range orders {
		text, err := approval.Sign(own, one.server, one.request, now)
		if err != nil {
			return cli.Usage("%w", err)
		}
		lines.WriteString(text + "\n")
	}
	file, err := os.OpenFile(o.propose, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644) //nolint:gosec // the file is for another operator, and has no secret
	if err != nil {
		return cli.Usage("--propose wants a new file: %w", err)
	}
	_, err = file.WriteString(lines.String())
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return fmt.Errorf("write the signed decision: %w", err)
	}
	out, until := cli.PrinterOf(cmd), now.Add(approval.Lifetime).UTC().Truncate(time.Second)
	out.Line("%s has the decision, signed by %s; nothing has changed. Another operator sends it until %s:", o.propose,
		own.Identity, until.Format(time.RFC3339))
	out.Line("  db-controller %s --approve %s --yes",
		strings.Join(slices.Concat([]string{cmd.Name()}, cmd.Flags().Args(), subjectFlags(cmd)), " "), o.propose)
	return out.Document(map[string]string{
		"file": o.propose, "signedBy": own.Identity.String(),
		"until": until.Format(time.RFC3339),
	})
}

// subjectFlags returns the given flags that say what a decision is about: the other operator gives them too.
func subjectFlags(cmd *cobra.Command) (given []string) {
	for _, name := range []string{"former-database", "unconfirmed-of", "comparison-of"} {
		switch flag := cmd.Flags().Lookup(name); {
		case flag == nil || !flag.Changed:
		case flag.Value.Type() == "bool":
			given = append(given, "--"+name)
		default:
			given = append(given, "--"+name, flag.Value.String())
		}
	}
	return given
}

// read returns the requests in the file of --approve, each with its approval. It fails when one is not valid
// now.
func (o *twoOperators) read(cmd *cobra.Command) (orders []order, err error) {
	own, err := ownCertificate(cmd)
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(o.approve)
	if err != nil {
		return nil, cli.Usage("--approve: %w", err)
	}
	for i, text := range strings.Fields(string(raw)) {
		p, err := approval.Open(own, text, time.Now())
		if err != nil {
			return nil, cli.WithCode(cli.Refused, fmt.Errorf("--approve %s, line %d: %w", o.approve, i+1, err))
		}
		if p.By == own.Identity {
			return nil, cli.WithCode(cli.Refused,
				fmt.Errorf("--approve %s: %s has signed it: another operator has to send it", o.approve, p.By))
		}
		request, ok := p.Request.(approval.Request)
		if !ok {
			return nil, cli.Usage("--approve %s, line %d: no decision", o.approve, i+1)
		}
		r := request.ProtoReflect()
		r.Set(r.Descriptor().Fields().ByName("approval"), protoreflect.ValueOfString(text))
		if orders = append(orders, order{p.Server, request}); i == 0 {
			cli.PrinterOf(cmd).Line("signed by %s, valid until %s", p.By, p.Until().UTC().Format(time.RFC3339))
		}
	}
	return orders, nil
}

// approved returns the requests of a type in a file of --approve. It fails when there is none.
func approved[T approval.Request](o *twoOperators, orders []order) (all []T, err error) {
	for _, one := range orders {
		if r, ok := one.request.(T); ok {
			all = append(all, r)
		}
	}
	if len(all) == 0 {
		return nil, cli.Usage("--approve %s: it has another decision than this command", o.approve)
	}
	return all, nil
}

// bare returns a copy of a request without its approval.
func bare[T approval.Request](req T) T {
	out := proto.Clone(req).(T)
	r := out.ProtoReflect()
	r.Clear(r.Descriptor().Fields().ByName("approval"))
	return out
}

// ownCertificate returns the certificate of the operator who runs the command.
func ownCertificate(cmd *cobra.Command) (*identity.Credentials, error) {
	path, err := cmd.Flags().GetString("context")
	if err != nil {
		return nil, err
	}
	f, err := client.ReadFile(path)
	if err != nil {
		return nil, cli.Usage("%w", err)
	}
	own, err := identity.Load(identity.InDir(f.Certs))
	if err != nil {
		return nil, cli.Usage("%w", err)
	}
	return own, nil
}
