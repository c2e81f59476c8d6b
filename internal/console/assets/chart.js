// Outstanding work by group over time, as this page has seen it.

import { h, svg } from './dom.js';
import { count } from './format.js';

const height = 160, left = 8, right = 190;
const dashes = ['none', '6 3', '2 3', '10 3 2 3', '1 2', '8 2'];

/** history is a list of { time, groups: { name: count } }, the oldest first. */
export function chart(history) {
  const width = Math.min(720, Math.max(320, innerWidth - 40)); // on a phone a unit is a pixel: smaller letters cannot be read
  const names = [...new Set(history.flatMap((p) => Object.keys(p.groups)))].sort();
  if (!names.length) return h('p', { class: 'quiet' }, 'None so far.');
  if (history.length < 2) return h('p', { class: 'quiet' }, `Now: ${names.map((n) => `${n} ${count(history[0].groups[n])}`).join(', ')}.`);
  const top = Math.max(1, ...history.flatMap((p) => Object.values(p.groups))), begin = history[0].time, span = Math.max(1, history.at(-1).time - begin);
  const x = (time) => left + ((width - left - right) * (time - begin)) / span, y = (n) => 18 + (height - 38) * (1 - n / top);
  const places = spread(names.map((name) => y(history.at(-1).groups[name] ?? 0)));
  return h('figure', {}, svg('svg', { class: 'chart', viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': `Outstanding work: ${names.map((n) => `${n} ${history.at(-1).groups[n] ?? 0}`).join(', ')}` },
    svg('path', { class: 'axis', d: `M${left} ${y(0)}H${width - right}M${left} ${y(top)}H${width - right}` }),
    svg('text', { x: left, y: y(top) - 3 }, count(top)),
    svg('text', { x: left, y: height - 4 }, `${Math.round(span / 1000)} s ago`),
    svg('text', { x: width - right, y: height - 4, 'text-anchor': 'end' }, 'now'),
    names.map((name, i) => [
      svg('polyline', { class: `series s${i % 6}`, 'stroke-dasharray': dashes[i % 6], points: history.map((p) => `${x(p.time).toFixed(1)},${y(p.groups[name] ?? 0).toFixed(1)}`).join(' ') }),
      svg('text', { class: `label s${i % 6}`, x: width - right + 6, y: places[i] + 4 }, `${name} ${count(history.at(-1).groups[name] ?? 0)}`),
    ])));
}

// Labels keep a distance of a line from one another.
function spread(places) {
  const order = places.map((place, i) => ({ place, i })).sort((a, b) => a.place - b.place);
  order.forEach((o, n) => { if (n) o.place = Math.max(o.place, order[n - 1].place + 14); });
  const over = Math.max(0, (order.at(-1)?.place ?? 0) - (height - 8));
  order.forEach((o) => { places[o.i] = o.place - over; });
  return places;
}
