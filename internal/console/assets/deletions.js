// Deletions: what each has found and done, in all deployments together and in each.

import { h } from './dom.js';
import { age, broken, clock, count, deploymentPage, plural, resourcePage, seconds } from './format.js';
import { table } from './table.js';

/** Running deletions of all deployments, one entry a deletion, the oldest first. */
export function running(all) {
  const found = new Map();
  for (const d of all) for (const x of d.status?.deletions ?? []) {
    const sum = found.get(x.id) ?? { id: x.id, root: x.root, found: 0, removed: 0, unset: 0, startTime: x.startTime, at: [] };
    sum.found += Number(x.found ?? 0); sum.removed += Number(x.removed ?? 0); sum.unset += Number(x.unset ?? 0);
    if (x.startTime < sum.startTime) sum.startTime = x.startTime;
    sum.at.push({ deployment: d.deployment, ...x });
    found.set(x.id, sum);
  }
  return [...found.values()].sort((a, b) => (a.startTime < b.startTime ? -1 : 1));
}

export function bar(removed, found) {
  return h('span', { class: 'bar' }, h('progress', { max: Math.max(1, Number(found)), value: Number(removed ?? 0), 'aria-label': 'removed' }), ` ${count(removed)} of ${count(found)}`);
}

// The rate so far gives the end.
function left(x) {
  if (!x.removed || x.removed >= x.found) return '';
  return `about ${seconds((age(x.startTime) / x.removed) * (x.found - x.removed))} left`;
}

export function deletionTable(list) {
  return table(['Root', 'Removed', 'Unset', 'Deployments', 'For', 'Estimate'], list.map((x) => [h('a', { href: resourcePage(x.root) }, broken(x.root)), bar(x.removed, x.found), count(x.unset), count(x.at.length), seconds(age(x.startTime)), left(x)]), true);
}

export function deletionsPage(model) {
  const list = running([...model.deployments.values()]);
  return [h('h1', {}, 'Running deletions'), h('p', { class: 'lead' }, list.length ? `${plural(list.length, 'deletion')} with resources in DELETING.` : 'No deletion has resources in DELETING.'),
    list.map((x) => h('section', { class: 'card', 'data-key': x.id }, tree(x)))];
}

/** A deletion as a tree: its root, and what it does in each deployment. */
export function tree(x) {
  return [h('h2', {}, h('a', { href: resourcePage(x.root) }, broken(x.root))),
    h('p', {}, bar(x.removed, x.found), `, ${plural(x.unset, 'reference')} unset, since ${clock(x.startTime)}`, left(x) && `, ${left(x)}`),
    h('ul', { class: 'tree' }, x.at.map((a) => h('li', { 'data-key': a.deployment }, h('a', { href: deploymentPage(a.deployment) }, a.deployment), ' ', bar(a.removed, a.found), Number(a.unset) ? `, ${plural(a.unset, 'reference')} unset` : '')))];
}
