// Package embed lets an application write resources in its own PostgreSQL transactions: in the database of a
// deployment, together with rows of the application's own tables.
//
//	app, err := embed.New(ctx, embed.Config{Deployment: id, Pool: pool, Certs: "certs/application"})
//	...
//	go app.Run(ctx)
//	_, err = app.Save(ctx, []embed.Write{{Name: "devices/d1", Body: body}}, func(tx pgx.Tx) error {
//		_, err := tx.Exec(ctx, `INSERT INTO bookings (device) VALUES ('devices/d1')`)
//		return err
//	})
//
// The resources and the rows are stored together, or neither is. References to resources of other deployments
// are established before the transaction begins, through the deployment's own process: the application has a
// certificate of its own (application/SERVICE/NAME) and a role of its own in PostgreSQL
// (<prefix>_application), and no key of the deployment. It adopts the version that the deployment runs, and
// never changes it.
package embed
