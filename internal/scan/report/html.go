package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
)

//go:embed page.html
var page string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"count": Count, "values": Values, "places": places, "share": share,
	"indent": func(level int) string { return fmt.Sprintf("%.1frem", float64(level-1)*1.4) },
}).Parse(page))

// HTML writes the report as one page without external resources.
func (r *Report) HTML(w io.Writer) error { return pageTemplate.Execute(w, r) }

// share returns a part of a whole in percent, for a bar: at least a visible part unless it is zero.
func share(part, whole int64) string {
	if whole <= 0 || part <= 0 {
		return "0%"
	}
	return fmt.Sprintf("%.1f%%", max(1.5, 100*float64(part)/float64(whole)))
}
