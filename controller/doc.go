// Package controller runs reconcilers: functions that bring the world in line with one resource, and are
// called again whenever the resource, or a resource that it depends on, has changed.
//
//	devices := controller.Kind{Deployment: deployment, Name: "Device"}
//	err := controller.New(c, devices).
//		Watches(projects, controller.ByIndex("project")).
//		Owns(jobs).
//		Index("project", projectOf).
//		Run(ctx, controller.Func(reconcile))
//
// A reconciler is given a name, not an event: it reads the present state in its View, and compares. It has to
// stand being called twice, and late. Nothing runs before the caches have all resources of all watched kinds;
// then each controlled resource is reconciled once. A resource is reconciled by one worker at a time; changes
// that arrive meanwhile are one more run. A run that fails, or panics, is repeated after a pause of its own,
// which grows.
//
// Resources come from a Source: over the network from a *client.Client, or inside the process of an
// application from an *embed.Source.
package controller
