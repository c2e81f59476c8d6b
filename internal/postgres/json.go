package postgres

import (
	"bytes"
	"encoding/json"
)

// DecodeJSON reads a column with JSON. Numbers keep their spelling (json.Number); NULL leaves into unchanged.
func DecodeJSON(raw []byte, into any) error {
	if raw == nil {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return d.Decode(into)
}
