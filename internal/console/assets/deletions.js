// Deletions: what each has found and done, in all deployments together and in each.

import { h } from './dom.js';
import { age, broken, clock, count, deploymentPage, plural, resourcePage, seconds } from './format.js';
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

export function deletionsPage(model) {
  const list = running([...model.deployments.values()]), later = scheduled([...model.deployments.values()]), silence = silent([...model.deployments.values()]);
  return [h('h1', {}, 'Running deletions'), h('p', { class: 'lead' }, list.length ? `${plural(list.length, 'deletion')} with resources in DELETING.` : silence ? 'No deletion is known to have resources in DELETING.' : 'No deletion has resources in DELETING.'), silence,
    list.map((x) => h('section', { class: 'card', 'data-key': x.id }, tree(x))), later.length ? scheduledCard(later) : null];
}

/** A deletion as a tree: its root, and what it does in each deployment. */
export function tree(x) {
  return [h('h2', {}, h('a', { href: resourcePage(x.root) }, broken(x.root))),
    h('p', {}, removedBar(x), ' removed', `, ${references(x)} unset, since ${clock(x.startTime)}`, left(x.left) && `, ${left(x.left)}`),
    h('ul', { class: 'tree' }, x.at.map((a) => h('li', { 'data-key': a.deployment }, h('a', { href: deploymentPage(a.deployment) }, a.deployment), ' ', removedBar(a), ' removed', expectedUnset(a) ? `, ${references(a)} unset` : '')))];
}

function references(x) {
  const all = expectedUnset(x);
  return all > Number(x.unset ?? 0) ? `${count(x.unset)} of ${plural(all, 'reference')}` : plural(all, 'reference');
}
