// The references of one resource as a graph: holders on the left, targets on the right, unfolded node by node. The address has what is unfolded.

import { h, svg } from './dom.js';
import { count, graphPage, resourcePage } from './format.js';
import { marker } from './map.js';

const node = { width: 240, height: 46 }, between = { x: 190, y: 12 }, margin = 16; // px
/** The neighbours of a node on one side; the page of the resource lists all. */
const most = 10;
/** Each unfolded node asks its deployments again and again. */
const mostUnfolded = 20;

export function graphPageOf(model, of) {
  const at = new URLSearchParams(of), name = at.get('name');
  if (!name) return [h('h1', {}, 'References'), h('p', {}, h('a', { href: '#/browse' }, 'Choose a resource.'))];
  const unfolded = [...new Set([name, ...at.getAll('open')])], seen = unfolded.slice(0, mostUnfolded).map((n) => neighbours(model, n));
  const problems = seen.flatMap((s) => s.problems);
  return [h('h1', {}, `References of ${name}`),
    h('p', { class: 'lead' }, h('a', { href: resourcePage(name) }, 'The resource'), '. What refers to it stands on the left, its targets on the right; + unfolds a resource.'),
    h('div', { class: 'map', id: 'graph', tabindex: '0', role: 'group', 'aria-label': `References of ${name}` }, drawing(name, unfolded, seen)),
    seen.some((s) => s.asking) ? h('p', { class: 'quiet' }, 'Asking the deployments …') : null,
    unfolded.length > mostUnfolded ? h('p', { class: 'problem' }, `Only ${mostUnfolded} resources can be unfolded at the same time.`) : null,
    problems.length ? h('ul', { class: 'notes' }, problems.map((p) => h('li', { 'data-state': 'away' }, h('i', {}, '✕'), p))) : null];
}

/** The references of a resource, in and out, by holder and target. */
function neighbours(model, name) {
  const { value: v, error } = model.ask(`api/resource?name=${encodeURIComponent(name)}`, true);
  if (!v) return { name, refs: [], more: 0, asking: !error, problems: error ? [`${name}: ${error}`] : [] };
  const found = (v.referrers ?? []).flatMap((a) => a.answer?.referrers ?? []);
  const holders = found.filter((f) => f.holder !== name).map((f) => ({ from: f.holder, to: name, path: f.path || 'owner', behaviour: f.behaviour?.replace('BEHAVIOUR_', '') }));
  const owners = (v.resource?.ownerReferences ?? []).map((o) => ({ from: name, to: o.name, path: 'owner' }));
  const targets = [...(v.references ?? []).map((f) => ({ from: name, to: f.target, path: f.path, behaviour: f.behaviour })), ...owners].filter((r) => r.to !== name);
  return {
    name, refs: [...holders.slice(0, most), ...targets.slice(0, most)], more: Math.max(0, holders.length - most) + Math.max(0, targets.length - most),
    problems: [v.errors?.referrers && `${name}: ${v.errors.referrers}`, v.errors?.references && `${name}: ${v.errors.references}`, ...(v.referrers ?? []).filter((a) => a.error).map((a) => `${a.deployment} did not answer, so that holders may be missing: ${a.error}`)].filter(Boolean),
  };
}

function drawing(root, unfolded, seen) {
  const layers = new Map([[root, 0]]), refs = new Map();
  for (const s of seen) for (const r of s.refs) {
    if (r.from === s.name && !layers.has(r.to)) layers.set(r.to, (layers.get(s.name) ?? 0) + 1);
    if (r.to === s.name && !layers.has(r.from)) layers.set(r.from, (layers.get(s.name) ?? 0) - 1);
    const key = `${r.from} ${r.to}`;
    refs.set(key, r);
  }
  const first = Math.min(...layers.values()), columns = Map.groupBy(layers.keys(), (name) => layers.get(name) - first);
  const tallest = Math.max(...[...columns.values()].map((c) => c.length)), places = new Map();
  for (const [x, names] of columns) names.forEach((name, i) => places.set(name, {
    x: margin + x * (node.width + between.x), y: margin + (i + (tallest - names.length) / 2) * (node.height + between.y),
  }));
  const ends = { from: new Map(), to: new Map() };
  for (const r of refs.values()) for (const end of ['from', 'to']) ends[end].set(r[end], (ends[end].get(r[end]) ?? 0) + 1);
  const width = columns.size * (node.width + between.x) - between.x + 2 * margin, height = tallest * (node.height + between.y) - between.y + 2 * margin;
  const more = new Map(seen.map((s) => [s.name, s.more]));
  return svg('svg', { class: 'graph', width, height, viewBox: `0 0 ${width} ${height}` }, svg('defs', {}, marker('reference')),
    svg('g', {}, [...refs.values()].map((r) => line(r, places.get(r.from), places.get(r.to), ends.to.get(r.to) > 1 ? 'from' : ends.from.get(r.from) > 1 ? 'to' : 'middle'))),
    svg('g', {}, [...places].map(([name, p]) => resource(name, p, root, unfolded, more.get(name) ?? 0))));
}

// A reference leaves its holder on the right and enters its target on the left, also when the target stands further left. Its label stands where it
// meets no other one.
function line(r, from, to, at) {
  const a = { x: from.x + node.width, y: from.y + node.height / 2 }, b = { x: to.x, y: to.y + node.height / 2 }, bend = Math.max(between.x / 2, Math.abs(b.x - a.x) / 2);
  const label = shortened(r.behaviour ? `${r.path} ${r.behaviour}` : r.path, 30, false);
  return svg('g', { 'data-key': `${r.from} ${r.to}`, 'data-behaviour': r.behaviour ?? '' }, svg('title', {}, `${r.from}\n${r.path} ${r.behaviour ?? ''}\n${r.to}`),
    svg('path', { d: `M${a.x} ${a.y}C${a.x + bend} ${a.y} ${b.x - bend} ${b.y} ${b.x} ${b.y}`, 'marker-end': 'url(#reference)' }),
    svg('text', labels[at](a, b), label));
}

const labels = {
  from: (a) => ({ x: a.x + 8, y: a.y - 6, 'text-anchor': 'start' }),
  to: (a, b) => ({ x: b.x - 12, y: b.y - 6, 'text-anchor': 'end' }),
  middle: (a, b) => ({ x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 - 7, 'text-anchor': 'middle' }),
};

function resource(name, p, root, unfolded, more) {
  const [, deployment, rest] = /^\/\/([^/]+\/[^/]+)\/(.*)$/.exec(name) ?? [null, '', name], open = unfolded.includes(name), others = unfolded.filter((n) => n !== name && n !== root);
  return svg('g', { class: name === root ? 'resource root' : 'resource', 'data-key': name, transform: `translate(${p.x} ${p.y})` },
    svg('a', { href: resourcePage(name) }, svg('title', {}, name), svg('rect', { width: node.width, height: node.height, rx: 9 }),
      svg('text', { x: 10, y: 19, class: 'name' }, shortened(rest, 24, true)), svg('text', { x: 10, y: 36 }, shortened(more ? `${deployment}, ${count(more)} more` : deployment, 34, true))),
    name !== root && svg('a', { href: graphPage(root, open ? others : [...others, name]), class: 'fold', 'aria-label': `${open ? 'Fold' : 'Unfold'} ${name}` },
      svg('circle', { cx: node.width - 16, cy: 15, r: 9 }), svg('text', { x: node.width - 16, y: 19, 'text-anchor': 'middle' }, open ? '−' : '+')));
}

function shortened(text, length, keepEnd) {
  if (text.length <= length) return text;
  return keepEnd ? `…${text.slice(1 - length)}` : `${text.slice(0, length - 1)}…`;
}
