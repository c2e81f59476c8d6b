package db

const (
	DoneSQL = `DELETE FROM dbcontroller.work WHERE seq = ANY ($1)`
)
