// The map: a row for each service, a column for each region, and the watches of deletions between deployments as lines.

import { h, svg } from './dom.js';
import { broken, count, deploymentPage, inOrder, plural } from './format.js';
import { health, late, outstanding, problems, severity, silence, states, unreached, unreachedOf } from './health.js';
import { chart } from './chart.js';
import { running, deletionTable } from './deletions.js';

/** From this number of deployments on, lines are drawn for one deployment at a time, and cells are small. */
const crowded = 25;

/** The problems that the map lists; each deployment's page has all of its own. */
const noted = 20;

export function mapPage(model) {
  const all = [...model.deployments.values()];
  if (!all.length) return [h('h1', {}, 'Deployments'), h('p', { class: 'quiet' }, model.loaded ? 'The environment has no deployments. Describe some, then `db-controller apply`.' : 'Asking the deployments …')];
  const dark = unreachedOf(all);
  return [
    h('h1', {}, 'Deployments'),
    summary(all, dark),
    grid(all, dark),
    legend(),
    attention(all, dark),
    h('h2', {}, 'Running deletions'),
    deletionTable(running(all).slice(0, 10)),
    running(all).length > 10 ? h('p', { class: 'quiet' }, h('a', { href: '#/deletions' }, 'All running deletions')) : null,
    h('h2', {}, 'Outstanding work in the last minutes'),
    chart(model.history),
  ];
}

function summary(all, dark) {
  const by = (state) => all.filter((d) => health(d, dark) === state).length;
  const tile = (value, label, state) => h('li', { class: 'tile', 'data-state': Number(value) ? state : null }, h('b', {}, count(value)), h('span', {}, label));
  return h('ul', { class: 'tiles' },
    tile(all.length, all.length === 1 ? 'deployment' : 'deployments'),
    tile(by('away'), 'without an answer', 'away'),
    tile(by('recovering'), 'recovering', 'recovering'),
    tile(by('failing'), 'failing', 'failing'),
    tile(by('waits'), 'waiting for others', 'waits'),
    tile(...runningTile(all), 'working'),
    tile(all.reduce((sum, d) => sum + outstanding(d), 0), 'pieces of work', 'working'),
  );
}

// A status lists some of its deletions beside their number: which of the others are the same is not known.
function runningTile(all) {
  const listed = running(all).length, most = Math.max(0, ...all.map((d) => Number(d.status?.deletionsTotal ?? 0)));
  const cut = all.some((d) => Number(d.status?.deletionsTotal ?? 0) > (d.status?.deletions ?? []).length);
  return [Math.max(listed, most), cut ? 'running deletions at least' : 'running deletions'];
}

function grid(all, dark) {
  const services = [...new Set(all.map((d) => d.service))].sort(inOrder), regions = [...new Set(all.map((d) => d.region))].sort(inOrder);
  const at = new Map(all.map((d) => [d.deployment, d]));
  const small = all.length >= crowded;
  return h('div', { class: 'map', id: 'map', 'data-crowded': small || null, tabindex: '0', role: 'group', 'aria-label': 'Map of services and regions' },
    h('div', { class: 'plane' }, h('table', { class: small ? 'grid small' : 'grid' },
      h('thead', {}, h('tr', {}, h('td', {}), regions.map((r) => h('th', { scope: 'col' }, h('span', {}, r))))),
      h('tbody', {}, services.map((s) => h('tr', {}, h('th', { scope: 'row' }, broken(s)), regions.map((r) => h('td', {}, cell(at.get(`${s}/${r}`), small, dark))))))),
    svg('svg', { class: 'lines', 'data-keep': true, 'aria-hidden': 'true' })));
}

function cell(d, small, dark) {
  if (!d) return null;
  const state = health(d, dark), busy = outstanding(d);
  const about = `${d.deployment}: ${states[state].word}${busy ? `, ${plural(busy, 'piece')} of work` : ''}`;
  return h('a', { class: 'cell', href: deploymentPage(d.deployment), 'data-state': state, 'data-deployment': d.deployment, title: about, 'aria-label': about },
    h('i', {}, states[state].sign),
    !small && h('span', {}, states[state].word),
    !small && h('small', {}, d.status?.version ?? d.version ?? '', busy ? ` · ${count(busy)} open` : ''));
}

function legend() {
  return h('ul', { class: 'legend' }, Object.entries(states).map(([key, s]) => h('li', { 'data-state': key }, h('i', {}, s.sign), s.word)),
    h('li', {}, h('span', { class: 'stroke' }), 'deletions are watched, towards the watcher'),
    h('li', {}, h('span', { class: 'stroke late' }), 'a watch is late'));
}

function attention(all, dark) {
  const regions = darkRegions(all);
  const silent = regions.map((r) => ({ state: 'away', key: r.region, of: h('b', {}, r.region), text: `No deployment of this region can be reached: ${r.names.join(', ')}. The region ${silence(r.since, r.answered)}.` }));
  const single = all.flatMap((d) => problems(d, dark).filter((p) => !quiet(d, p, regions)).map((p) => ({ ...p, key: d.deployment, of: h('a', { href: deploymentPage(d.deployment) }, d.deployment) })));
  const found = [...silent, ...single].sort((a, b) => severity.indexOf(a.state) - severity.indexOf(b.state) || inOrder(a.key, b.key));
  return [h('h2', {}, 'Needs attention'), found.length
    ? h('ul', { class: 'notes' }, found.slice(0, noted).map((p) => h('li', { 'data-state': p.state }, h('i', {}, states[p.state].sign), p.of, h('span', {}, p.text))), found.length > noted && h('li', {}, `and ${count(found.length - noted)} more`))
    : h('p', { class: 'quiet' }, 'Nothing.')];
}

// What the map does not note: work, what is off, waiting for a deployment that has a note of its own, and deployments in the note of their region.
function quiet(d, p, regions) {
  return ['working', 'off', 'waits'].includes(p.state) || (unreached(d) && regions.some((r) => r.region === d.region));
}

/** The regions with two deployments or more of which none can be reached, and since when. */
function darkRegions(all) {
  return Object.entries(Object.groupBy(all.filter((d) => !d.disabled), (d) => d.region)).filter(([, of]) => of.length > 1 && of.every(unreached)).map(([region, of]) => {
    const last = of.reduce((a, b) => (a.silentSince > b.silentSince ? a : b)); // the last of them to fall silent
    return { region, names: of.map((d) => d.service).sort(inOrder), since: last.silentSince, answered: last.answered };
  });
}

/** Draws the watches: all of them on a small map, those of one deployment on a large one. */
export function drawLines(model, chosen) {
  const map = document.getElementById('map'), lines = map?.querySelector('svg.lines');
  if (!lines) return;
  const origin = map.querySelector('.plane').getBoundingClientRect();
  lines.setAttribute('width', origin.width);
  lines.setAttribute('height', origin.height);
  const cells = new Map([...map.querySelectorAll('[data-deployment]')].map((e) => [e.dataset.deployment, e.getBoundingClientRect()]));
  const drawn = [];
  for (const d of model.deployments.values()) {
    const overdue = new Set(late(d.status ?? {}).map((w) => w.deployment));
    for (const w of d.status?.watches ?? []) {
      const touches = chosen === d.deployment || chosen === w.deployment;
      if (w.name !== 'deletions' || w.deployment === d.deployment || !(touches || (!chosen && !('crowded' in map.dataset)))) continue;
      const from = cells.get(w.deployment), to = cells.get(d.deployment);
      if (from && to) drawn.push(line(from, to, origin, overdue.has(w.deployment), touches));
    }
  }
  lines.replaceChildren(svg('defs', {}, marker('arrow')), ...drawn);
}

/** Returns the head of an arrow. */
export function marker(id) {
  return svg('marker', { id, viewBox: '0 0 8 8', refX: 7, refY: 4, markerUnits: 'userSpaceOnUse', markerWidth: 9, markerHeight: 9, orient: 'auto' }, svg('path', { d: 'M0 0L8 4L0 8z' }));
}

// A line leaves and enters a cell at its border, bent to its right, so that both directions are seen.
function line(from, to, origin, overdue, chosen) {
  const centre = (r) => ({ x: r.left + r.width / 2 - origin.left, y: r.top + r.height / 2 - origin.top, w: r.width / 2, h: r.height / 2 });
  const a = centre(from), b = centre(to), dx = b.x - a.x, dy = b.y - a.y, length = Math.hypot(dx, dy) || 1;
  const bend = Math.min(28, length / 5), middle = { x: (a.x + b.x) / 2 - (dy / length) * bend, y: (a.y + b.y) / 2 + (dx / length) * bend };
  const start = border(a, middle), end = border(b, middle);
  return svg('path', { d: `M${start.x} ${start.y}Q${middle.x} ${middle.y} ${end.x} ${end.y}`, class: [overdue && 'late', chosen && 'chosen'].filter(Boolean).join(' '), 'marker-end': 'url(#arrow)' });
}

function border(c, towards) {
  const dx = towards.x - c.x, dy = towards.y - c.y, scale = Math.min(c.w / (Math.abs(dx) || 1e-6), c.h / (Math.abs(dy) || 1e-6), 1);
  return { x: (c.x + dx * scale).toFixed(1), y: (c.y + dy * scale).toFixed(1) };
}
