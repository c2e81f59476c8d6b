package model

import "slices"

// Establishes reports whether a message in flight establishes an attempt.
func (w *World) Establishes(i int) bool { return w.bag[i].kind == establish }

// Gather joins an establish in flight with others from and to the same deployment in one call. The receiver
// leaves out the given part, as it does when the target is locked.
func (w *World) Gather(first, most, leftOut int) {
	m := message{kind: together, from: w.bag[first].from, to: w.bag[first].to, leftOut: leftOut}
	w.bag = slices.DeleteFunc(w.bag, func(part message) bool {
		joins := part.kind == establish && part.from == m.from && part.to == m.to && len(m.parts) < most
		if joins {
			m.parts = append(m.parts, part)
		}
		return joins
	})
	w.send(m)
}

// establishTogether establishes several attempts, each by itself, in one transaction.
func (w *World) establishTogether(m message) (answers []message) {
	for i, part := range m.parts {
		if i == m.leftOut || w.waits(part) {
			answers = append(answers, part)
			continue
		}
		answers = append(answers, message{
			kind: established, from: m.to, to: m.from, attempt: part.attempt,
			targets: w.establish(part),
		})
	}
	return answers
}

// outcomes gives each write the answer to its attempt. One that was left out is sent by itself.
func (w *World) outcomes(m message) {
	for i, part := range m.parts {
		neighbour := m.parts[(i+1)%len(m.parts)]
		switch {
		case part.kind == establish && w.LeftOutIsEstablished:
			part = message{kind: established, from: m.from, to: m.to, attempt: part.attempt, targets: w.targetsOf(part)}
		case part.kind == establish:
			w.send(part)
			continue
		case w.OutcomesAreOfNeighbours && part.targets == nil && neighbour.kind == established:
			part.targets = neighbour.targets
		}
		w.established(part)
	}
}

func (w *World) targetsOf(m message) map[string]UID {
	targets := map[string]UID{}
	for _, r := range m.requests {
		if t := w.deployments[m.to].named(r.name); t != nil {
			targets[r.path] = t.UID
		}
	}
	return targets
}

// established takes the answer to an attempt.
func (w *World) established(m message) {
	for _, wr := range w.writes {
		if wr.attempt != m.attempt || wr.at != m.to || !wr.waiting[m.from] {
			continue
		}
		delete(wr.waiting, m.from)
		if m.targets == nil {
			wr.refused = true
		}
		for path, uid := range m.targets {
			if ref, ok := wr.refs[path]; ok {
				ref.Target = uid
				wr.refs[path] = ref
			}
		}
	}
}
