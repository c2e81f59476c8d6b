// Deletions: what each has found and done, in all deployments together and in each.

import { h, svg } from './dom.js';
import { age, ago, broken, clock, count, deletionPage, deploymentPage, plural, resourcePage, seconds } from './format.js';
import { health, states, unreachedOf } from './health.js';
import { table } from './table.js';

/** Running deletions of all deployments, one entry a deletion, the oldest first. */
export function running(all) {
  const found = new Map();
  for (const d of all) for (const x of d.status?.deletions ?? []) {
    const sum = found.get(x.id) ?? { id: x.id, root: x.root, startTime: x.startTime, at: [] };
    if (x.startTime < sum.startTime) sum.startTime = x.startTime;
    sum.at.push({ deployment: d.deployment, ...x });
    found.set(x.id, sum);
  }
  return [...found.values()].map((x) => ({ ...x, ...total(x.at) })).sort((a, b) => (a.startTime < b.startTime ? -1 : 1));
}

/** What the deployments have done; they work at the same time, so that the last one ends it. */
export function total(at) {
  const sum = (of) => at.reduce((n, x) => n + of(x), 0);
  return {
    removed: sum((x) => Number(x.removed ?? 0)), unset: sum((x) => Number(x.unset ?? 0)), expected: sum(expected), expectedUnset: sum(expectedUnset),
    left: Math.max(0, ...at.map((x) => parseFloat(x.left ?? '0'))),
  };
}

// A deployment of an earlier release expects what it has found.
function expected(x) { return Math.max(Number(x.found ?? 0), Number(x.expected ?? 0)); }
function expectedUnset(x) { return Math.max(Number(x.unset ?? 0), Number(x.expectedUnset ?? 0)); }

export function bar(removed, found) {
  return h('span', { class: 'bar' }, h('progress', { max: Math.max(1, Number(found)), value: Number(removed ?? 0), 'aria-label': 'removed' }), ` ${count(removed)} of ${count(found)}`);
}

/** How much one deployment has removed, or all of them. */
export function removedBar(x) { return bar(x.removed, expected(x)); }

/** How much is unset, and of how much, if that is known. */
export function unset(x) { return expectedUnset(x) > Number(x.unset ?? 0) ? `${count(x.unset)} of ${count(expectedUnset(x))}` : count(x.unset); }

/** An estimate of so many seconds; less than a second says nothing. */
export function left(n) { return n >= 0.5 ? `about ${seconds(Math.round(n))} left` : ''; }

export function deletionTable(list) {
  return table(['Root', 'Removed', 'Unset', 'Deployments', 'For', 'Estimate'], list.map((x) => [h('a', { href: resourcePage(x.root) }, broken(x.root)), removedBar(x), unset(x), count(x.at.length), seconds(age(x.startTime)), left(x.left)]), true);
}

/** Deletions with a retention, one entry a deletion, the next one to be carried out first. */
export function scheduled(all) {
  const found = new Map();
  for (const d of all) for (const x of d.status?.scheduled ?? []) {
    const key = `${x.root} ${x.deleteTime}`, sum = found.get(key) ?? { ...x, resources: 0, deployments: 0 };
    sum.resources += Number(x.resources ?? 0);
    sum.deployments += 1;
    sum.actor ||= x.actor;
    sum.reason ||= x.reason;
    found.set(key, sum);
  }
  return [...found.values()].sort((a, b) => (a.purgeTime < b.purgeTime ? -1 : 1));
}

/** The resources that deletions with a retention hide in one deployment. */
export function hidden(list) {
  return table(['Deleted with', 'Hides here', 'Removed at', ''], list.map((x) => [h('a', { href: resourcePage(x.root) }, broken(x.root)), plural(Number(x.resources ?? 0), 'resource'), clock(x.purgeTime), x.reason ? `✕ ${x.reason}` : '']), true);
}

function scheduledCard(list) {
  return h('section', { class: 'card', 'data-key': 'scheduled' }, h('h2', {}, 'Deleted, and hidden until the purge time'),
    table(['Root', 'Hides', 'Deployments', 'By', 'Deleted', 'Removed at', ''], list.map((x) => [h('a', { href: resourcePage(x.root) }, broken(x.root)), plural(x.resources, 'resource'), count(x.deployments), x.actor ?? '', clock(x.deleteTime), clock(x.purgeTime), x.reason ? `✕ ${x.reason}` : '']), true),
    h('p', { class: 'quiet' }, 'The page of a root brings it back, with all that went along; so does db-controller undelete.'));
}

/** A deployment that does not answer may have more. */
function silent(all) {
  const n = all.filter((d) => !d.status && !d.disabled).length;
  return n ? h('ul', { class: 'notes' }, h('li', { 'data-state': 'away' }, h('i', {}, '✕'), h('span', {}, `${plural(n, 'deployment')} did not answer: there may be more deletions, and more resources in each.`))) : null;
}

/**
 * Deletions that have ended everywhere, one entry a deletion, the last begun first. Each deployment lists its last ones: an older deletion than
 * the last one of a list that goes on is left out, since it would lack deployments. Ids are in the order of their beginnings.
 */
export function ended(answers, running) {
  const since = answers.filter((a) => a.answer?.nextPageToken).map((a) => a.answer.deletions?.at(-1)?.id ?? '').sort().at(-1) ?? '';
  const found = new Map();
  for (const a of answers) for (const x of a.answer?.deletions ?? []) {
    if (x.id < since || running.some((r) => r.id === x.id)) continue;
    const one = found.get(x.id) ?? { id: x.id, root: x.root, at: [] };
    one.at.push({ deployment: a.deployment, ...x });
    found.set(x.id, one);
  }
  return [...found.values()].map((x) => ({ ...x, ...total(x.at), ...span(x.at) })).sort((a, b) => (a.id < b.id ? 1 : -1));
}

/** From the first mark in any deployment to the last change, in milliseconds. */
function span(at) {
  return { begin: Math.min(...at.map((a) => Date.parse(a.startTime))), end: Math.max(...at.map((a) => Date.parse(a.updateTime ?? a.startTime))) };
}

function endedCard(model, running) {
  const answer = model.ask('api/ended', true), answers = answer.value ?? [], list = ended(answers, running);
  const silent = answers.filter((a) => a.error).map((a) => a.deployment);
  return h('section', { class: 'card', 'data-key': 'ended' }, h('h2', {}, 'Ended within seven days'),
    answer.value ? table(['Root', 'Removed', 'Unset', 'Deployments', 'Began', 'Took'], list.map((x) => [h('a', { href: deletionPage(x.id) }, broken(x.root)), count(x.removed), count(x.unset), count(x.at.length), clock(new Date(x.begin)), seconds((x.end - x.begin) / 1000)]), true) : h('p', { class: 'quiet' }, answer.error ?? 'Asking …'),
    silent.length ? h('p', { class: 'quiet' }, `Without ${silent.join(', ')}, which did not answer.`) : null);
}

export function deletionsPage(model) {
  const all = [...model.deployments.values()], dark = unreachedOf(all);
  const list = running(all), later = scheduled(all), silence = silent(all);
  return [h('h1', {}, 'Deletions'), h('p', { class: 'lead' }, list.length ? `${plural(list.length, 'deletion')} with resources in DELETING.` : silence ? 'No deletion is known to have resources in DELETING.' : 'No deletion has resources in DELETING.'), silence,
    list.map((x) => h('section', { class: 'card', 'data-key': x.id }, tree(x, (name) => { const d = model.deployments.get(name); return d && health(d, dark); }))), later.length ? scheduledCard(later) : null, endedCard(model, list)];
}

/** One deletion, running or ended. */
export function deletionPageOf(model, id) {
  const answer = model.ask(`api/deletion?id=${encodeURIComponent(id)}`), answers = answer.value ?? [];
  const at = answers.filter((a) => a.answer).map((a) => ({ deployment: a.deployment, ...a.answer })), silent = answers.filter((a) => a.error);
  if (!at.length) return [h('h1', {}, 'Deletion'), h('p', { class: 'quiet' }, answer.error ?? (answer.value ? `No deployment that answered knows the deletion ${id}: deletions are kept for seven days.` : 'Asking the deployments …'))];
  const first = at.reduce((a, b) => (a.startTime < b.startTime ? a : b));
  return [h('h1', {}, `Deletion of ${first.root}`), h('section', { class: 'card' }, tree({ root: first.root, startTime: first.startTime, at, ...total(at) })),
    silent.length ? h('ul', { class: 'notes' }, silent.map((a) => h('li', { 'data-state': 'away' }, h('i', {}, '✕'), `${a.deployment} did not answer: ${a.error}`))) : null,
    h('p', { class: 'quiet' }, 'db-controller removals --root ', first.root, ' lists each resource that was removed.')];
}

/** A deletion as a tree: its root, and what it does in each deployment, and when. The argument stateOf returns the health of a deployment. */
export function tree(x, stateOf = () => null) {
  const { begin, end } = span(x.at), runs = x.at.some((a) => !done(a)), until = runs ? Date.now() : end;
  return [h('h2', {}, h('a', { href: resourcePage(x.root) }, broken(x.root))),
    h('p', {}, removedBar(x), ' removed', `, ${references(x)} unset, since ${clock(x.startTime)}`, left(x.left) && `, ${left(x.left)}`),
    h('ul', { class: 'tree' }, [...x.at].sort((a, b) => (a.startTime < b.startTime ? -1 : 1)).map((a) => h('li', { 'data-key': a.deployment },
      h('a', { href: deploymentPage(a.deployment) }, a.deployment), ' ', removedBar(a), ' removed', expectedUnset(a) ? `, ${references(a)} unset` : '', h('span', { class: 'quiet' }, when(a, begin)), waits(a, stateOf(a.deployment)), track(a, begin, until))))];
}

function done(a) { return Number(a.removed ?? 0) >= expected(a) && Number(a.unset ?? 0) >= expectedUnset(a); }

// A deployment counts for half a second before it stores what it has counted.
function when(a, begin) {
  const after = (time) => (Date.parse(time) - begin < 1000 ? 'at once' : `after ${seconds((Date.parse(time) - begin) / 1000)}`);
  return `, began ${after(a.startTime)}, ${done(a) ? `ended ${after(a.updateTime ?? a.startTime)}` : `last change ${ago(a.updateTime)}`}`;
}

function waits(a, state) { return !done(a) && state && state !== 'ok' && state !== 'working' ? h('span', { 'data-state': state }, ' ', h('i', {}, states[state].sign), states[state].word) : null; }

/** The time of a deletion in one deployment, beside that of the whole deletion. */
function track(a, begin, until) {
  const share = (time) => Math.min(1, (time - begin) / Math.max(1, until - begin)) * 100, from = Math.min(98, share(Date.parse(a.startTime))), to = done(a) ? share(Date.parse(a.updateTime ?? a.startTime)) : 100;
  return svg('svg', { class: done(a) ? 'track' : 'track running', viewBox: '0 0 100 4', preserveAspectRatio: 'none', 'aria-hidden': 'true' }, svg('path', { d: 'M0 2H100' }), svg('rect', { x: from.toFixed(2), y: 0, width: Math.max(2, to - from).toFixed(2), height: 4 }));
}

function references(x) {
  const all = expectedUnset(x);
  return all > Number(x.unset ?? 0) ? `${count(x.unset)} of ${plural(all, 'reference')}` : plural(all, 'reference');
}
