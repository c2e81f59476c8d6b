package server

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"

	"github.com/db-controller/db-controller/schema"
	"github.com/db-controller/db-controller/schema/grant"
	"github.com/db-controller/db-controller/schema/wire"
)

// queueDifference queues the statements that make after of before, and returns a text for each: a line, and
// indented lines with the difference.
func queueDifference(b *pgx.Batch, before, after *schema.Environment) ([]string, error) {
	var changes []string
	for _, r := range after.Regions {
		if !slices.Contains(before.Regions, r) {
			b.Queue(upsertRegionSQL, r)
			changes = append(changes, "region "+r+": created")
		}
	}
	for _, d := range after.Services {
		i := slices.IndexFunc(before.Services, func(e *schema.Descriptor) bool {
			return e.ServiceVersion == d.ServiceVersion
		})
		if i >= 0 && sameDescriptor(before.Services[i], d) {
			continue
		}
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(wire.DescriptorProto(d))
		if err != nil {
			return nil, err
		}
		b.Queue(upsertServiceSQL, d.Service, d.Version, raw)
		line := "service " + d.String() + ": " + word(i >= 0)
		if i >= 0 {
			line = withLines(line, schema.Differences(before.Services[i].Document(nil), d.Document(nil)))
		}
		changes = append(changes, line)
	}
	for _, d := range after.Deployments {
		old := find(before, d.DeploymentID)
		if old != nil && old.Version == d.Version && old.Address == d.Address && old.Generation == d.Generation &&
			old.Disabled == d.Disabled && old.Database == d.Database {
			continue
		}
		b.Queue(upsertDeploymentSQL, pgx.StrictNamedArgs{
			"service": d.Service, "region": d.Region, "version": d.Version, "address": d.Address,
			"generation": d.Generation, "disabled": d.Disabled,
			"database": uuid.NullUUID{UUID: d.Database, Valid: d.Database != uuid.Nil},
		})
		changes = append(changes, withLines("deployment "+d.String()+": "+word(old != nil),
			deploymentDifferences(old, d)))
	}
	if after.Rights != before.Rights { // also when they are the same: deployments keep the latest declaration
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(wire.RightsProto(after.Rights))
		if err != nil {
			return nil, err
		}
		b.Queue(upsertRightsSQL, raw)
		changes = append(changes, withLines("rights: "+declared(before.Rights, after.Rights),
			grant.Differences(before, after)))
	}
	return append(changes, queueRemovals(b, before, after)...), nil
}

func declared(before, after *schema.Rights) string {
	if after.Same(before) {
		return "declared again"
	}
	return word(before != nil)
}

func word(existed bool) string {
	if existed {
		return "changed"
	}
	return "created"
}

// withLines adds indented lines to a line, at most 100.
func withLines(line string, lines []string) string {
	const most = 100
	if len(lines) > most {
		lines = append(slices.Clone(lines[:most]), "and more")
	}
	return strings.Join(append([]string{line}, lines...), "\n  ")
}

func deploymentDifferences(old *schema.Deployment, d schema.Deployment) (lines []string) {
	if old == nil {
		return []string{"version: " + d.Version}
	}
	compare := func(name, before, after string) {
		if before != after {
			lines = append(lines, name+": "+cmp.Or(before, "none")+" → "+cmp.Or(after, "none"))
		}
	}
	compare("version", old.Version, d.Version)
	compare("address", old.Address, d.Address)
	compare("disabled", strconv.FormatBool(old.Disabled), strconv.FormatBool(d.Disabled))
	compare("database", databaseName(old.Database), databaseName(d.Database))
	return lines
}

func databaseName(id uuid.UUID) string {
	if id == uuid.Nil {
		return ""
	}
	return id.String()
}

// queueRemovals removes the rows that the new environment lacks: deployments first, which need services and
// regions.
func queueRemovals(b *pgx.Batch, before, after *schema.Environment) (changes []string) {
	for _, d := range before.Deployments {
		if find(after, d.DeploymentID) == nil {
			b.Queue(removeDeploymentSQL, d.Service, d.Region)
			changes = append(changes, "deployment "+d.String()+": removed")
		}
	}
	for _, d := range before.Services {
		if !slices.ContainsFunc(after.Services, func(e *schema.Descriptor) bool {
			return e.ServiceVersion == d.ServiceVersion
		}) {
			b.Queue(removeServiceSQL, d.Service, d.Version)
			changes = append(changes, "service "+d.String()+": removed")
		}
	}
	for _, r := range before.Regions {
		if !slices.Contains(after.Regions, r) {
			b.Queue(removeRegionSQL, r)
			changes = append(changes, "region "+r+": removed")
		}
	}
	return changes
}
