package kindgraph

import (
	"cmp"
	"fmt"
	"html"
	"io"
	"slices"
	"strings"
)

// Sizes of the picture, in pixels.
const (
	leastHeight = 46 // of a box with two lines
	edgeHeight  = 24 // of the place where an arrow leaves its box, with its text
	passHeight  = 16 // of an arrow that passes a column
	rowGap      = 26
	margin      = 24
	boxLetter   = 7.4 // the width of a letter in a box
	edgeLetter  = 5.8 // the width of a letter beside an arrow
)

// place is a rectangle in a column: of a kind, or of an arrow that passes the column on its way to a kind
// further to the left.
type place struct {
	kind                string // empty for an arrow
	to                  []*place
	x, y, width, height float64
}

// layout is the places of kinds and arrows.
type layout struct {
	columns       [][]*place // from the left
	kinds         map[string]*place
	ways          [][]*place // of each arrow: the places that it passes, and its end
	width, height float64
}

// SVG writes the graph as a picture: targets to the left of their holders, so that deletions go from left to
// right.
func (g *Graph) SVG(out io.Writer) error {
	l := g.layout()
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" font-family="sans-serif" font-size="12">
<title>Kinds and their references</title>
<rect width="100%%" height="100%%" fill="#ffffff"/>
`, l.width, l.height, l.width, l.height)
	leaves, arrives := map[string]int{}, map[string]int{}
	for i, e := range g.Edges {
		b.WriteString(l.arrow(e, l.ways[i], leaves[e.From], arrives[e.To]))
		leaves[e.From]++
		arrives[e.To]++
	}
	for _, kind := range g.Kinds {
		at := l.kinds[kind]
		service, name := ofKind(kind)
		fmt.Fprintf(&b,
			`<g><rect x="%.0f" y="%.0f" width="%.0f" height="%.0f" rx="7" fill="#f4f6fa" stroke="#44546a"/>`, at.x,
			at.y, at.width, at.height)
		fmt.Fprintf(&b, `<text x="%.0f" y="%.0f" font-weight="bold" fill="#1b1b1b">%s</text>`, at.x+12, at.y+20,
			html.EscapeString(name))
		fmt.Fprintf(&b, `<text x="%.0f" y="%.0f" font-size="11" fill="#555555">%s</text></g>`+"\n", at.x+12, at.y+36,
			html.EscapeString(service))
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(out, b.String())
	return err
}

// arrow draws the references of a kind to another one: the nth arrow that leaves the one, and the mth that
// arrives at the other.
func (l *layout) arrow(e Edge, way []*place, n, m int) string {
	from, to := l.kinds[e.From], l.kinds[e.To]
	y := from.y + edgeHeight*(float64(n)+0.6)
	endX, endY := to.x+to.width, to.y+10+float64(m%int(max(1, (to.height-16)/7)))*7
	text := func(x float64, anchor string) string {
		return fmt.Sprintf(`<text x="%.1f" y="%.1f" text-anchor="%s" font-size="10" fill="%s">%s</text>`, x, y-4,
			anchor, e.colour(), html.EscapeString(e.label()))
	}
	var b strings.Builder
	curve := func(x1, y1, x2, y2, bend1, bend2 float64) {
		fmt.Fprintf(&b,
			`<path d="M%.1f %.1f C%.1f %.1f %.1f %.1f %.1f %.1f" fill="none" stroke="%s" stroke-width="1.4"/>`, x1, y1,
			x1+bend1, y1, x2+bend2, y2, x2, y2, e.colour())
	}
	head := fmt.Sprintf(`<path d="M%.1f %.1f l8 -4 v8 z" fill="%s"/>`, endX, endY, e.colour())
	if right := from.x + from.width; len(way) == 0 && to.x > from.x { // closes a circle
		curve(right, y, to.x-7, endY, 60, -60)
		return text(right+8, "start") + b.String() + fmt.Sprintf(`<path d="M%.1f %.1f l-8 -4 v8 z" fill="%s"/>`, to.x,
			endY, e.colour()) + "\n"
	} else if len(way) == 0 { // in one column: around the right side
		curve(right, y, endX+7, endY, 45, 45)
		return text(right+40, "start") + b.String() + head + "\n"
	}
	x, label := from.x, edgeLetter*float64(len([]rune(e.label())))+14
	fmt.Fprintf(&b, `<path d="M%.1f %.1f h%.1f" stroke="%s" stroke-width="1.4"/>`, x, y, -label, e.colour())
	x -= label
	at := y
	for _, p := range way {
		x2, y2, stays := p.x+p.width, p.y+p.height/2, -p.width
		if p.kind != "" {
			x2, y2, stays = endX+7, endY, 0
		}
		curve(x, at, x2, y2, (x2-x)/2, (x-x2)/2)
		if x, at = x2+stays, y2; stays != 0 {
			fmt.Fprintf(&b, `<path d="M%.1f %.1f H%.1f" stroke="%s" stroke-width="1.4"/>`, x2, y2, x, e.colour())
		}
	}
	return text(from.x-8, "end") + b.String() + head + "\n"
}

// label is the text beside an arrow.
func (e Edge) label() string { return strings.Join(e.Fields, ", ") + " " + e.Behaviour }

// layout gives each kind the column that is the length of the longest way to a kind that refers to none.
func (g *Graph) layout() *layout {
	l := &layout{kinds: map[string]*place{}}
	depths, leaving := g.depths(), map[string]int{}
	for _, e := range g.Edges {
		leaving[e.From]++
	}
	add := func(column int, p *place) *place {
		for len(l.columns) <= column {
			l.columns = append(l.columns, nil)
		}
		l.columns[column] = append(l.columns[column], p)
		return p
	}
	for _, kind := range g.Kinds {
		service, name := ofKind(kind)
		l.kinds[kind] = add(depths[kind], &place{
			kind: kind, height: max(leastHeight, edgeHeight*(float64(leaving[kind])+0.3)),
			width: 24 + boxLetter*float64(max(len([]rune(service)), len([]rune(name)))),
		})
	}
	gaps := make([]float64, len(l.columns)+1) // before each column
	for _, e := range g.Edges {
		column, end := depths[e.From], depths[e.To]
		room := edgeLetter*float64(len([]rune(e.label()))) + 70
		if end >= column {
			gaps[column+1] = max(gaps[column+1], room+40)
			l.ways = append(l.ways, nil)
			continue
		}
		gaps[column] = max(gaps[column], room)
		var way []*place
		last := l.kinds[e.From]
		for c := column - 1; c > end; c-- {
			pass := add(c, &place{height: passHeight})
			last.to, way, last = append(last.to, pass), append(way, pass), pass
		}
		last.to = append(last.to, l.kinds[e.To])
		l.ways = append(l.ways, append(way, l.kinds[e.To]))
	}
	l.arrange(gaps)
	return l
}

// arrange sets the coordinates, column by column; each place is beside those to which its arrows lead.
func (l *layout) arrange(gaps []float64) {
	l.width = margin
	for n, column := range l.columns {
		l.width += gaps[n]
		slices.SortStableFunc(column, func(a, b *place) int { return cmp.Compare(a.aim(), b.aim()) })
		widest, y := 0.0, float64(margin)
		for _, p := range column {
			widest = max(widest, p.width)
		}
		for _, p := range column {
			p.x, p.y, p.width = l.width, y, widest
			y += p.height + rowGap
		}
		l.width += widest
		l.height = max(l.height, y-rowGap+margin)
	}
	l.width += gaps[len(l.columns)] + margin
	l.height = max(l.height, 2*margin)
}

// aim is the mean height of the places to which arrows lead.
func (p *place) aim() (y float64) {
	for _, to := range p.to {
		y += (to.y + to.height/2) / float64(len(p.to))
	}
	return y
}

// depths returns for each kind the number of arrows of the longest way from it. An arrow that closes a circle
// does not count.
func (g *Graph) depths() map[string]int {
	to, out, on := map[string][]string{}, map[string]int{}, map[string]bool{}
	for _, e := range g.Edges {
		to[e.From] = append(to[e.From], e.To)
	}
	var visit func(kind string) int
	visit = func(kind string) int {
		if depth, done := out[kind]; done {
			return depth
		}
		on[kind] = true
		depth := 0
		for _, target := range to[kind] {
			if !on[target] {
				depth = max(depth, 1+visit(target))
			}
		}
		on[kind], out[kind] = false, depth
		return depth
	}
	for _, kind := range g.Kinds {
		visit(kind)
	}
	return out
}
