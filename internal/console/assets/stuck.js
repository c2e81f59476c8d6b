// What has waited for long, in all deployments: why, and for whom.

import { h } from './dom.js';
import { age, ago, broken, count, deploymentPage, inOrder, linked, plural, resourcePage, seconds } from './format.js';
import { paused } from './actions.js';
import { table } from './table.js';

const choices = ['10s', '1m', '10m', '1h', '24h'];
const shown = 5; // of a group, before the others are unfolded

export function stuckPage(model, longer = '1m') {
  const answer = model.ask(`api/stuck?longer=${encodeURIComponent(longer)}`);
  const head = [h('h1', {}, 'Stuck'), h('p', { class: 'choice' }, 'Waits for more than ', choices.map((c) => [h('a', { href: `#/stuck/${c}`, 'aria-current': c === longer ? 'true' : null }, c), ' ']))];
  if (!answer.value) return [head, h('p', { class: 'quiet' }, answer.error ?? 'Asking the deployments …')];
  const silent = answer.value.filter((a) => a.error).sort((a, b) => inOrder(a.deployment, b.deployment)), found = answer.value.filter((a) => a.answer?.resources?.length || a.answer?.work?.length || a.answer?.pauses?.length);
  return [head, answer.error && h('p', {}, answer.error),
    silent.length ? h('ul', { class: 'notes' }, silent.map((a) => h('li', { 'data-state': 'away' }, h('i', {}, '✕'), h('a', { href: deploymentPage(a.deployment) }, a.deployment), h('span', {}, a.error)))) : null,
    found.length ? null : h('p', { class: 'lead' }, silent.length ? 'Nothing waits for long in the deployments that answered.' : 'Nothing waits for long.'),
    found.map((a) => h('section', { class: 'card', 'data-key': a.deployment }, h('h2', {}, h('a', { href: deploymentPage(a.deployment) }, a.deployment)), pauses(a.deployment, a.answer.pauses ?? []), resources(a.answer.resources ?? [], Number(a.answer.totalSize ?? 0)), work(a.answer.work ?? [])))];
}

function resources(list, total) {
  if (!list.length) return null;
  return [h('h3', {}, `${plural(Math.max(total, list.length), 'resource')} in DELETING`), total > list.length ? h('p', { class: 'quiet' }, `The ${count(list.length)} that have waited for the longest time; `, h('code', {}, 'db-controller stuck'), ' lists all.') : null, groups(list).map(group)];
}

/** Groups resources by the pattern of their reasons, the largest group first, and in each the oldest first. */
function groups(list) {
  const found = new Map();
  for (const r of list) {
    const why = (r.reasons ?? []).map(pattern), key = why.join('\n');
    if (!found.has(key)) found.set(key, { key, list: [] });
    found.get(key).list.push(r);
  }
  for (const g of found.values()) g.list.sort((a, b) => (a.since < b.since ? -1 : 1));
  return [...found.values()].sort((a, b) => b.list.length - a.list.length);
}

// The reasons of many resources differ by the names of their blockers alone: a pattern has a star for each id.
function pattern(reason) {
  return reason.replace(/(\/\/[^/\s]+\/[^/\s]+)((?:\/[^/\s]+\/[^/\s,;]+)+)/g, (_, deployment, name) => deployment + name.split('/').map((part, i) => (i && i % 2 === 0 ? '*' : part)).join('/'));
}

function group(g) {
  const common = new Set((g.list[0].reasons ?? []).filter((reason) => g.list.every((r) => (r.reasons ?? []).includes(reason))));
  const why = (g.list[0].reasons ?? []).map((reason) => (common.has(reason) ? reason : pattern(reason))), same = common.size === why.length;
  const rows = (list) => table(same ? ['Resource', 'Since'] : ['Resource', 'Since', 'Why'], list.map((r) => [h('a', { href: resourcePage(r.name) }, broken(r.name)), ago(r.since), ...(same ? [] : [reasons(r.reasons.filter((reason) => !common.has(reason)))])]));
  const rest = g.list.slice(shown);
  return h('section', { class: 'group', 'data-key': g.key },
    h('p', { class: 'why' }, h('b', {}, count(g.list.length)), h('span', {}, why.length ? reasons(why) : 'no reason is known')),
    g.list[0].since && h('p', { class: 'quiet' }, `The oldest waits for ${seconds(age(g.list[0].since))}.`),
    rows(g.list.slice(0, shown)),
    rest.length ? h('details', {}, h('summary', {}, `${count(g.list.length - shown)} more`), h('div', { class: 'rest', tabindex: '0', role: 'region', 'aria-label': 'more resources' }, rows(rest))) : null);
}

function reasons(list) { return list.length > 1 ? h('ul', {}, list.map((r) => h('li', {}, linked(r)))) : linked(list[0]); }

function pauses(deployment, list) {
  if (!list.length) return null;
  return [h('h3', {}, 'Paused'), table(['What', 'Since', 'By', 'Reason'], list.map((p) => [paused(p, deployment), ago(p.time), p.actor, p.reason]))];
}

function work(list) {
  if (!list.length) return null;
  return [h('h3', {}, 'Work'), table(['Group', 'For', 'Pieces', 'Since', 'Reason'], list.map((w) => [w.group, broken(w.deployment), count(w.count), ago(w.since), broken(w.lastError || w.reason)]))];
}
