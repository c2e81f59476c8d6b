// Plan: what a delete would do in all deployments, and the delete itself, where actions are allowed.

import { h } from './dom.js';
import { broken, count, deploymentPage, linked, plural, resourcePage, seconds } from './format.js';
import { table } from './table.js';
import { deleteAction, detachAction } from './actions.js';

export function planPageOf(model, name) {
  const head = [h('h1', {}, 'Plan of a delete'), h('p', { class: 'lead' }, h('a', { href: resourcePage(name) }, broken(name)))];
  const answer = model.ask(`api/plan?name=${encodeURIComponent(name)}`, true);
  if (!answer.value) return [head, h('p', { class: 'quiet' }, answer.error ?? 'Asking all deployments that it reaches …')];
  const plan = answer.value, groups = plan.groups ?? [];
  return [head, verdict(plan, groups),
    h('section', { class: 'card', 'data-key': 'effect' }, h('h2', {}, 'What it does'), h('ul', { class: 'tree' }, below(groups, -1))),
    plan.blockers?.length ? h('section', { class: 'card', 'data-key': 'blockers' }, h('h2', {}, 'What blocks it'), table(['Resource', 'By the field', 'Blocks', ''], plan.blockers.map((b) => [linked(b.holder), b.path ?? '', linked(b.target), [certainty(b), detachAction(b)]]), true),
      Number(plan.hiddenBlockers ?? 0) ? h('p', { class: 'quiet' }, `and ${plural(plan.hiddenBlockers, 'blocker')} that you may not read`) : null) : null,
    deleteAction(name, plan.accepted === true)];
}

function verdict(plan, groups) {
  const sum = (unset) => groups.filter((g) => Boolean(g.unset) === unset).reduce((n, g) => n + Number(g.count ?? 0), 0);
  const unasked = plan.unasked ?? [];
  const sure = plan.truncated || plan.uncounted || unasked.length ? 'at least ' : '';
  return [h('p', { class: 'lead', 'data-state': plan.accepted ? 'ok' : 'away' }, h('i', {}, plan.accepted ? '✓' : '✕'), plan.accepted ? ` It would be accepted: ${sure}${plural(sum(false), 'resource')} removed, ${plural(sum(true), 'reference')} unset${plan.retention ? `, after ${seconds(parseFloat(plan.retention))}, in which they are hidden and can be undeleted` : ''}.` : ' It would not be accepted now: ', plan.refusal ? linked(plan.refusal) : ''),
    unasked.length ? h('ul', { class: 'notes' }, unasked.map((u) => h('li', { 'data-state': 'away' }, h('i', {}, '✕'), h('a', { href: deploymentPage(u.deployment) }, u.deployment), h('span', {}, ` is not in this plan: ${u.message ?? 'it does not answer'}`)))) : null];
}

// The groups below one, which has this number; the first ones are below none.
function below(groups, parent) {
  return groups.map((g, i) => [g, i]).filter(([g]) => Number(g.parent ?? 0) === parent).map(([g, i]) => {
    const rest = Number(g.count ?? 0) - (g.samples ?? []).length;
    return h('li', { 'data-key': String(i) }, h('b', {}, `${g.atLeast ? '≥ ' : ''}${count(g.count)} ${g.kind}`), ` ${g.unset ? 'unset' : 'removed'} in `, h('a', { href: deploymentPage(g.deployment) }, g.deployment), g.path ? ` (${g.path})` : '', g.samples?.length ? ': ' : '',
      (g.samples ?? []).map((s, n) => [n ? ', ' : '', h('a', { href: resourcePage(s) }, broken(s.replace(`//${g.deployment}/`, '')))]), rest > 0 && g.samples?.length ? ` and ${count(rest)} more` : '',
      g.finalizers?.length ? `; waits for ${g.finalizers.join(', ')}` : '', Number(g.denied ?? 0) ? `; you have no right to delete ${count(g.denied)} of them` : '', h('ul', {}, below(groups, i)));
  });
}

function certainty(b) {
  if (b.unknown) return 'unless it is deleted as well, which is unknown';
  if (b.undecided) return 'is about to, perhaps';
  return b.refuses ? '' : 'later: its target waits';
}
