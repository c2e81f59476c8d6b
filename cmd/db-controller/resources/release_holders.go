package resources

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/db-controller/db-controller/client"
	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/cmd/db-controller/direct"
	"github.com/db-controller/db-controller/internal/detach"
	"github.com/db-controller/db-controller/schema"
)

// releasing has the changes that a delete makes to the holders of its resources before it deletes these.
type releasing struct {
	detach string // unset or delete: the resources that block; empty: neither
	orphan bool   // resources that the delete would cascade to stay, without their references
	yes    bool
}

func (r *releasing) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&r.detach, "detach", "",
		"first remove what blocks: `unset` the references (the default without a value), or delete their holders; needs --yes")
	f.Lookup("detach").NoOptDefVal = detachUnset
	f.BoolVar(&r.orphan, "orphan", false,
		"first remove the references and owners by which other resources would be deleted along, so that these stay; needs --yes")
	f.BoolVar(&r.yes, "yes", false,
		"change the resources that --detach and --orphan list, or delete with --now what is not hidden")
	// the flag exists
	_ = cmd.RegisterFlagCompletionFunc("detach", cobra.FixedCompletions([]string{detachUnset, detachDelete},
		cobra.ShellCompDirectiveNoFileComp))
}

const (
	detachUnset  = "unset"
	detachDelete = "delete"
)

func (r *releasing) given() bool { return r.detach != "" || r.orphan }

func (r *releasing) check() error {
	if r.detach != "" && r.detach != detachUnset && r.detach != detachDelete {
		return cli.Usage("--detach=%s: want unset or delete", r.detach)
	}
	return nil
}

// tie is a reference, or an owner, that is removed before a delete.
type tie struct {
	Holder string `json:"holder"`
	Path   string `json:"path"`
	Target string `json:"target"`
	// Action is unset or delete.
	Action string `json:"action"`
}

func (t tie) String() string {
	if t.Action == detachDelete {
		return t.Holder + " is deleted"
	}
	if t.Path == detach.OwnerPath {
		return fmt.Sprintf("%s is no longer owned by %s", t.Holder, t.Target)
	}
	return fmt.Sprintf("%s: %s no longer names %s", t.Holder, t.Path, t.Target)
}

// releaseTries is how often changes are tried while other writers are first.
const releaseTries = 10

// release removes the references and owners that tie other resources to the named ones, or only lists them
// (--dry-run, or without --yes). It is no transaction: changed holders stay changed when the delete is
// refused afterwards.
func (r *releasing) release(cmd *cobra.Command, c *client.Client, names []string, dryRun bool) error {
	ctx, tell := cmd.Context(), cmd.PrintErrln // programs read the document of the delete
	if out := cli.PrinterOf(cmd); out.People() {
		tell = func(line ...any) { out.Line("%s", line...) }
	}
	done := map[tie]bool{}
	for tries := 0; ; {
		ties, err := r.ties(ctx, c, names)
		if err != nil {
			return err
		}
		ties = slices.DeleteFunc(ties, func(t tie) bool { return done[t] })
		if len(ties) == 0 {
			return nil
		}
		if err := unsettable(ctx, c, ties); err != nil {
			return err
		}
		if dryRun || !r.yes {
			tell("Before the delete:")
			for _, t := range ties {
				tell("  " + t.String())
			}
			if dryRun {
				tell("Without these changes:")
				return nil
			}
			return cli.Usage("nothing is changed or deleted: %s listed; add --yes to go on", changes(len(ties)))
		}
		progress, last := false, error(nil)
		for _, t := range ties {
			err := t.remove(ctx, c)
			if code := status.Code(err); code == codes.Aborted || code == codes.FailedPrecondition &&
				t.Action == detachDelete {
				last = err // another writer was first, or another holder has to go before it
				continue
			}
			if err != nil && status.Code(err) != codes.NotFound {
				return fmt.Errorf("%s is not carried out, and nothing is deleted: %w", t, cli.Plain(err))
			}
			done[t], progress = true, true
			tell(t.String())
		}
		if progress {
			tries = 0
		} else if tries++; tries == releaseTries || status.Code(last) != codes.Aborted {
			return cli.WithCode(cli.Refused, fmt.Errorf("nothing is deleted: %s not possible, such as: %s: %w",
				changes(len(ties)), ties[len(ties)-1], cli.Plain(last)))
		}
	}
}

// unsettable fails for a tie of a row, before anything is changed: SQL changes rows.
func unsettable(ctx context.Context, c *client.Client, ties []tie) error {
	attached, err := attachedKinds(ctx, c)
	if err != nil {
		return err
	}
	for _, t := range ties {
		name, err := schema.ParseFullName(t.Holder)
		if err != nil || t.Action == detachDelete {
			continue
		}
		if table := attached(name); table != "" {
			return cli.WithCode(cli.Refused,
				fmt.Errorf(
					"nothing is changed or deleted: %s is a row of table %s, in which SQL changes %s; --detach=delete deletes such rows", name, table, t.Path))
		}
	}
	return nil
}

func changes(n int) string {
	if n == 1 {
		return "1 change is"
	}
	return fmt.Sprintf("%d changes are", n)
}

// ties returns the ties to remove: the blockers on the first page of each deployment's plan, and all
// references and owners that would take resources along.
func (r *releasing) ties(ctx context.Context, c *client.Client, names []string) (all []tie, err error) {
	if r.orphan {
		for _, name := range names {
			if all, err = orphans(ctx, c, all, name, names); err != nil {
				return nil, err
			}
		}
		if len(all) > 0 && r.yes {
			return all, nil // the plan is another one after them
		}
	}
	if r.detach == "" {
		return nil, nil
	}
	open, err := selections(names)
	if err != nil {
		return nil, err
	}
	for _, s := range open {
		plan, err := planOf(ctx, c, s.names)
		if err != nil {
			return nil, err
		}
		if hidden := plan.GetHiddenBlockers(); hidden > 0 {
			return nil, cli.WithCode(cli.Refused,
				fmt.Errorf("%d blockers are of resources that you may not read: ask somebody who may", hidden))
		}
		for _, b := range plan.GetBlockers() {
			switch {
			case slices.Contains(names, b.GetHolder()), r.orphan && !slices.Contains(names, b.GetTarget()):
				// the target stays
			case b.GetUndecided() || b.GetUnanswered():
				return nil, cli.WithCode(cli.Unavailable,
					fmt.Errorf("it is not known whether %s refers to %s: try again", b.GetHolder(), b.GetTarget()))
			default:
				all = append(all, tie{
					Holder: b.GetHolder(), Path: b.GetPath(), Target: b.GetTarget(),
					Action: r.detach,
				})
			}
		}
	}
	return all, nil
}

// orphans adds the resources that would be deleted along with a resource, unless they are deleted by name.
func orphans(ctx context.Context, c *client.Client, all []tie, name string, names []string) ([]tie, error) {
	for referrer, err := range c.Referrers(ctx, name) {
		if err != nil {
			return nil, cli.Plain(err)
		}
		if slices.Contains(names, referrer.GetHolder()) || referrer.GetPath() != detach.OwnerPath &&
			!schema.Behaviour(referrer.GetBehaviour()).Cascades() {
			continue
		}
		if referrer.GetPath() == schema.ParentPath {
			return nil, cli.WithCode(cli.Refused,
				fmt.Errorf("%s is below %s and cannot stay without it: name it too, or delete it before",
					referrer.GetHolder(), name))
		}
		all = append(all, tie{
			Holder: referrer.GetHolder(), Path: referrer.GetPath(), Target: name,
			Action: detachUnset,
		})
	}
	return all, nil
}

// remove removes a tie. It fails as its calls do, or because the holder's body does not have the reference.
func (t tie) remove(ctx context.Context, c *client.Client) error {
	name, resources, err := direct.Named(ctx, c, t.Holder)
	if err != nil {
		return err
	}
	if t.Action == detachDelete {
		return detach.Holder(ctx, resources, name, t.Path, t.Target)
	}
	return detach.Reference(ctx, resources, name, t.Path, t.Target)
}
