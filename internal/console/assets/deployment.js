// One deployment: version, epoch, processes with their shards, watches, work, failures and decisions.

import { h, svg } from './dom.js';
import { ago, broken, clock, count, deploymentPage, plural, seconds, age } from './format.js';
import { health, late, problems, states, unreachedOf } from './health.js';
import { chart } from './chart.js';
import { bar, hidden, left, removedBar, unset } from './deletions.js';
import { table } from './table.js';
import { deploymentActions, paused } from './actions.js';

/** A new epoch of the database skips multiples of it; the rest counts the versions, of which the first one was no switch. */
// A generation after a restore has more digits than a Number.
const generationsOfEpoch = 1000000n;

export function deploymentPageOf(model, name) {
  const d = model.deployments.get(name);
  if (!d) return [h('h1', {}, name), h('p', {}, 'The environment has no such deployment.')];
  const dark = unreachedOf([...model.deployments.values()]), state = health(d, dark), found = problems(d, dark), s = d.status;
  const head = [h('h1', {}, name), h('p', { class: 'state', 'data-state': state }, h('i', {}, states[state].sign), states[state].word, h('small', {}, ` asked ${ago(d.asked)}`)),
    found.length ? h('ul', { class: 'notes' }, found.map((p) => h('li', { 'data-state': p.state }, h('i', {}, states[p.state].sign), h('span', {}, p.text)))) : null];
  if (!s) return [head, d.imports?.length ? h('p', {}, 'Its version imports ', d.imports.join(', '), '.') : null];
  return [head, h('div', { class: 'cards' },
    card('Version', facts({ 'runs': s.version, 'environment wants': d.version, 'switches': count(Math.max(0, Number(BigInt(s.generation ?? 0) % generationsOfEpoch) - 1)), 'imports': (d.imports ?? []).join(', ') || 'nothing' }), derivations(s.derivations)),
    card('Database', facts({ 'identity': s.database, 'epoch': `${s.epoch?.ordinal ?? '?'} since ${clock(s.epoch?.since)}`, 'to be confirmed by': (s.epoch?.unconfirmed ?? []).join(', ') || 'nobody', 'dangling references': count(s.danglingReferences), 'attached tables': attached(s.attachedRows) })),
    card('Processes and shards', processes(s.processes ?? [], d.ring)),
    card('Outstanding work', table(['Group', 'For', 'Pieces', 'Oldest'], (s.outstanding ?? []).map((o) => [o.group, link(o.deployment), count(o.count), ago(o.oldestTime)])), chart(model.historyOf(name))),
    card('Watches', watches(s)),
    card('Deletions here', table(['Root', 'Removed', 'Unset', 'For', 'Estimate'], (s.deletions ?? []).map((x) => [x.root, removedBar(x), unset(x), seconds(age(x.startTime)), left(parseFloat(x.left ?? '0'))]), true)),
    s.scheduled?.length ? card('Hidden until a purge time', hidden(s.scheduled)) : null,
    card('Last failures of handlers', table(['Handler', 'For', 'When', 'Error'], (s.failures ?? []).map((f) => [f.handler, link(f.deployment), ago(f.time), broken(f.error)]), true)),
    card('Decisions of operators', table(['About', 'Decision', 'When', 'By', 'Reason'], [
      ...(s.decommissioned ?? []).map((x) => [x.deployment, `decommissioned, blocking references: ${x.blocking}`, clock(x.saidTime), x.saidBy, x.reason]),
      ...(s.words ?? []).map((x) => [x.deployment, x.what, clock(x.saidTime), x.saidBy, x.reason]),
      ...(s.pauses ?? []).map((p) => [p.of, `${paused(p, p.of)} paused`, clock(p.time), p.actor, p.reason])], true)),
    s.kept?.length ? card('Resources without a kind or pattern', table(['Kind', 'Resources', 'Such as'], s.kept.map((k) => [k.kind, count(k.resources), k.sample]))) : null,
    deploymentActions(name, [...model.deployments.keys()]))];
}

function card(title, ...content) { return h('section', { class: 'card', 'data-key': title }, h('h2', {}, title), content); }

function link(name) { return name && name.includes('/') ? h('a', { href: deploymentPage(name) }, broken(name)) : name ?? ''; }

function facts(of) { return h('dl', {}, Object.entries(of).filter(([, v]) => v).map(([k, v]) => [h('dt', {}, k), h('dd', {}, v)])); }

// What `status` says of rows of attached tables; nothing when all have their rights.
function attached(rows) { return rows && [Number(rows.waiting) ? `${plural(rows.waiting, 'row')} waiting for a right or a deletion` : '', Number(rows.incomplete) ? `${plural(rows.incomplete, 'value')} without a target (attach --status)` : ''].filter(Boolean).join(', '); }

function derivations(list = []) { return list.map((x) => h('p', {}, `${x.kind}: `, bar(x.done, x.total), Number(x.setAside) ? `, ${count(x.setAside)} set aside` : '')); }

// The ring of shards as a strip: each cell has the number of the process that holds the shard.
function processes(list, ring) {
  const holder = new Map();
  list.forEach((p, i) => (age(p.expireTime) > 0 ? [] : p.shards ?? []).forEach((s) => holder.set(s, i)));
  const free = ring - holder.size;
  const cells = Array.from({ length: ring }, (_, s) => {
    const at = holder.get(s), x = (s % 16) * 20, y = Math.floor(s / 16) * 20;
    return svg('g', {}, svg('rect', { x: x + 1, y: y + 1, width: 18, height: 18, rx: 3, class: at === undefined ? 'free' : `p${at % 6}` }), svg('text', { x: x + 10, y: y + 14, 'text-anchor': 'middle' }, at === undefined ? '·' : at + 1));
  });
  return [svg('svg', { class: 'shards', viewBox: `0 0 320 ${20 * Math.ceil(ring / 16)}`, role: 'img', 'aria-label': `${ring - free} of ${ring} shards are held by ${plural(list.length, 'process')}` }, cells),
    free ? h('p', {}, `${plural(free, 'shard')} without a process: their work waits.`) : null,
    table(['', 'Process', 'Shards', 'Since', 'Lease'], list.map((p, i) => [i + 1, p.name, count((p.shards ?? []).length), ago(p.joinTime), age(p.expireTime) > 0 ? 'expired' : 'held']))];
}

function watches(s) {
  const overdue = new Set(late(s));
  const own = (s.watches ?? []).filter((w) => w.name !== 'deletions'), others = (s.watches ?? []).filter((w) => w.name === 'deletions');
  return [h('p', {}, `${plural(own.length, 'watch').replace('watchs', 'watches')} of its own resources, ${count(own.filter((w) => overdue.has(w)).length)} late.`),
    table(['Deletions of', 'State', 'Last message', 'Lost'], others.map((w) => [link(w.deployment), overdue.has(w) ? '! late' : '✓ live', ago(w.heardTime), count(w.lost)]))];
}
