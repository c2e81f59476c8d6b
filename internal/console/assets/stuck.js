// What has waited for long, in all deployments: why, and for whom.

import { h } from './dom.js';
import { ago, broken, count, deploymentPage, plural, resourcePage } from './format.js';
import { paused } from './actions.js';
import { table } from './deployment.js';

const choices = ['10s', '1m', '10m', '1h', '24h'];

export function stuckPage(model, longer = '1m') {
  const answer = model.ask(`api/stuck?longer=${encodeURIComponent(longer)}`);
  const head = [h('h1', {}, 'Stuck'), h('p', { class: 'choice' }, 'Waits for more than ', choices.map((c) => [h('a', { href: `#/stuck/${c}`, 'aria-current': c === longer ? 'true' : null }, c), ' ']))];
  if (!answer.value) return [head, h('p', { class: 'quiet' }, answer.error ?? 'Asking the deployments …')];
  const silent = answer.value.filter((a) => a.error), found = answer.value.filter((a) => a.answer?.resources?.length || a.answer?.work?.length || a.answer?.pauses?.length);
  return [head, answer.error && h('p', {}, answer.error),
    silent.length ? h('ul', { class: 'notes' }, silent.map((a) => h('li', { 'data-state': 'away' }, h('i', {}, '✕'), h('a', { href: deploymentPage(a.deployment) }, a.deployment), h('span', {}, a.error)))) : null,
    found.length ? null : h('p', { class: 'lead' }, silent.length ? 'Nothing waits for long in the deployments that answered.' : 'Nothing waits for long.'),
    found.map((a) => h('section', { class: 'card', 'data-key': a.deployment }, h('h2', {}, h('a', { href: deploymentPage(a.deployment) }, a.deployment)), pauses(a.deployment, a.answer.pauses ?? []), resources(a.answer.resources ?? []), work(a.answer.work ?? [])))];
}

function resources(list) {
  if (!list.length) return null;
  return [h('h3', {}, `${plural(list.length, 'resource')} in DELETING`), table(['Resource', 'Since', 'Why'], list.map((r) => [h('a', { href: resourcePage(r.name) }, broken(r.name)), ago(r.since), reasons(r.reasons ?? [])]))];
}

function reasons(list) { return list.length > 1 ? h('ul', {}, list.map((r) => h('li', {}, r))) : list[0] ?? ''; }

function pauses(deployment, list) {
  if (!list.length) return null;
  return [h('h3', {}, 'Paused'), table(['What', 'Since', 'By', 'Reason'], list.map((p) => [paused(p, deployment), ago(p.time), p.actor, p.reason]))];
}

function work(list) {
  if (!list.length) return null;
  return [h('h3', {}, 'Work'), table(['Group', 'For', 'Pieces', 'Since', 'Last error'], list.map((w) => [w.group, w.deployment, count(w.count), ago(w.since), w.lastError ?? '']))];
}
