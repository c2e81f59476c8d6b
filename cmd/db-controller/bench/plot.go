package bench

import (
	"cmp"
	"html/template"
	"io"
	"math"
	"strconv"
)

// The picture has a row for each result, and the baselines at a line in its middle. Lengths are in pixels.
const (
	rowHeight  = 22
	nameWidth  = 230
	valueWidth = 190
	barsWidth  = 420
	// decades is how many powers of ten the bars show to each side of the baseline.
	decades = 1.5
)

var picture = template.Must(template.New("").Parse(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{.Width}} {{.Height}}" width="{{.Width}}" font-family="sans-serif" font-size="12">
<style>text { fill: #222 } .axis { stroke: #888 } .bar { fill: #3b6ea8 } .faint { fill: #666 } .ground { fill: #fff }
@media (prefers-color-scheme: dark) { text { fill: #ddd } .faint { fill: #aaa } .bar { fill: #7fb0e6 } .ground { fill: #181818 } }</style>
<rect class="ground" width="100%" height="100%"/>
<text x="{{.Middle}}" y="14" text-anchor="middle" class="faint">native keys, plain inserts: 1</text>
<line class="axis" x1="{{.Middle}}" x2="{{.Middle}}" y1="20" y2="{{.Height}}"/>
{{range .Rows}}<text x="{{.NameEnd}}" y="{{.Text}}" text-anchor="end">{{.Name}}</text>
{{if .Length}}<rect class="bar" x="{{.Left}}" y="{{.Top}}" width="{{.Length}}" height="14"><title>{{.Ratio}} of the baseline</title></rect>
{{end}}<text x="{{.ValueAt}}" y="{{.Text}}" class="faint">{{.Value}}</text>
{{end}}</svg>
`))

type pictureRow struct {
	Name, Value, Ratio string
	NameEnd, ValueAt   int
	Top, Text          int
	Left, Length       float64
}

// Plot writes an SVG picture of the results: how many times the baseline's time was needed, or which part of its rate was reached, on a
// logarithmic scale.
func Plot(out io.Writer, results []Result) error {
	const middle = nameWidth + barsWidth/2
	rows := make([]pictureRow, len(results))
	for i, r := range results {
		row := pictureRow{
			Name: r.Case + " " + strconv.Itoa(r.N), Value: number(r.Value, "%.1f ") + r.Unit,
			NameEnd: nameWidth - 10, ValueAt: nameWidth + barsWidth + 10, Top: 26 + i*rowHeight, Text: 37 + i*rowHeight,
		}
		if r.Ratio > 0 {
			row.Ratio = number(r.Ratio, "%.2f")
			row.Value += ", " + row.Ratio + " ×"
			length := barsWidth / 2 * math.Max(-1, math.Min(1, math.Log10(r.Ratio)/decades))
			row.Left, row.Length = middle+math.Min(0, length), cmp.Or(math.Abs(length), 1)
		}
		rows[i] = row
	}
	return picture.Execute(out, struct {
		Width, Height, Middle int
		Rows                  []pictureRow
	}{nameWidth + barsWidth + valueWidth, 34 + len(rows)*rowHeight, middle, rows})
}
