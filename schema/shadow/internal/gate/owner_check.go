package gate

const (
	SelectVersionSQL = `SELECT version, generation FROM dbcontroller.meta`
)
