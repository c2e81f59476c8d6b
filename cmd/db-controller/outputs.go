package main

import (
	"maps"

	"github.com/db-controller/db-controller/cmd/db-controller/cli"
	"github.com/db-controller/db-controller/cmd/db-controller/operate"
	"github.com/db-controller/db-controller/cmd/db-controller/resources"
)

// outputs are the documents that commands print for programs.
func outputs() cli.Outputs {
	all := resources.Outputs()
	maps.Copy(all, operate.Outputs())
	all["build"] = cli.Output{About: "The version of the program.", Value: cli.Build{}}
	return all
}

// printed has the names of the documents that each command prints, one each time it is called.
var printed = map[string][]string{
	"get": {"resource", "resources"}, "list": {"resources", "total"}, "put": {"resource", "resources"},
	"patch": {"resource"}, "watch": {"event"},
	"set-status": {"resource"}, "block-deletion": {"resource"}, "undelete": {"resource", "resources"},
	"remove-finalizer": {"resource"},
	"delete":           {"deleted", "deleted-all", "plan", "plans"}, "plan": {"plan", "plans"},
	"explain":   {"explanation"},
	"referrers": {"referrers"},
	"removals":  {"removal-chains", "removals", "receipt", "receipts", "verified"}, "purge": {"purged"},

	"get environment": {"environment"}, "get services": {"services"}, "get rights": {"rights"},
	"get deployments": {"deployments"}, "get regions": {"regions"},
	"get kinds": {"kinds"}, "get references": {"references"}, "history": {"history"}, "who-can": {"holders"},
	"apply": {"changes"}, "remove": {"changes"}, "set-version": {"version-set"}, "pause": {"pause"},
	"resume": {"pause"}, "retry": {"retried"},
	"force-release": {"releasable", "released", "waived", "signed"}, "decommission": {
		"decommission-plan",
		"decision", "signed",
	},

	"status": {"status", "statuses"}, "stuck": {"stuck"}, "doctor": {"findings"}, "verify": {"verification"},
	"version": {"build"},
}
