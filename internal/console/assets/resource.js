// One resource: its state and what it waits for, its body with the references, who refers to it, its deletion, and the record of removals.

import { h } from './dom.js';
import { ago, broken, clock, deploymentPage, graphPage, linked as linkedText, planPage, plural, resourcePage } from './format.js';
import { table } from './table.js';
import { total, tree } from './deletions.js';
import { resourceActions } from './actions.js';

const fullName = /^\/\/[^/]+\/[^/]+\/.+/;

export function resourcePageOf(model, name) {
  const form = h('form', { id: 'find', class: 'find', role: 'search' }, h('label', { for: 'name' }, 'Full name'), h('input', { id: 'name', name: 'name', 'data-key': name ?? '', value: name ?? '', placeholder: '//iam.example.com/us-west2/projects/acme', autocomplete: 'off', spellcheck: 'false' }), h('button', {}, 'Show'));
  if (!name) return [h('h1', {}, 'Resource'), form, h('p', {}, h('a', { href: '#/browse' }, 'Browse the resources'), ' of a deployment.')];
  const answer = model.ask(`api/resource?name=${encodeURIComponent(name)}`);
  if (!answer.value) return [h('h1', {}, 'Resource'), form, h('p', { class: 'quiet' }, answer.error ?? 'Asking …')];
  const v = answer.value, r = v.resource, x = v.explain;
  return [h('h1', {}, 'Resource'), form, h('div', { class: 'cards' },
    card('State', r || x ? state(r, x) : h('p', {}, v.errors?.resource ?? 'It does not exist.')),
    x?.deletion ? card('Deletion', deletion(model, x.deletion)) : null,
    card('Referred to by', v.errors?.referrers ? h('p', { class: 'quiet' }, v.errors.referrers) : referrers(v.referrers ?? []), h('p', {}, h('a', { href: graphPage(name) }, 'All references as a graph'))),
    r ? card('References and body', references(v), h('details', {}, h('summary', {}, 'Body'), h('pre', {}, JSON.stringify(r.body ?? {}, null, 2)))) : null,
    r?.ownerReferences?.length ? card('Owners', table(['Owner', 'Controller'], r.ownerReferences.map((o) => [linked(o.name), o.controller ? 'yes' : 'no']))) : null,
    r && !x?.deletion ? card('Delete', h('p', {}, h('a', { href: planPage(name) }, 'What a delete would do'), ' in all deployments, and what blocks it.')) : null,
    card('Removals', v.errors?.removals ? h('p', { class: 'quiet' }, v.errors.removals) : removals(v.removals?.removals ?? [])),
    r?.purgeTime && x && !x.reasons?.some((w) => w.type === 'SCHEDULED' && w.message.includes(` with ${name},`)) ? null // its root brings it back
      : r || x ? resourceActions(name, Boolean(r?.purgeTime)) : null)];
}

function card(title, ...content) { return h('section', { class: 'card', 'data-key': title }, h('h2', {}, title), content); }

function linked(name) { return fullName.test(name ?? '') ? h('a', { href: resourcePage(name) }, broken(name)) : name ?? ''; }

function state(r, x) {
  return [h('dl', {}, Object.entries({ kind: x?.kind ?? r?.kind, state: x ? `${x.state}${x.pending ? ', with outstanding work' : ''}` : r?.state, uid: x?.uid ?? r?.uid, changed: clock(x?.updateTime ?? r?.updateTime), protected: r?.blockDeletion ? 'its deletion is blocked' : '', hidden: r?.purgeTime ? `since ${clock(r.deleteTime)}, and removed at ${clock(r.purgeTime)}` : '' }).filter(([, v]) => v).map(([k, v]) => [h('dt', {}, k), h('dd', {}, v)])),
    x?.reasons?.length ? h('ul', { class: 'notes' }, x.reasons.map((w) => h('li', {}, h('b', {}, w.type), h('span', {}, ' ', linkedText(w.message), w.since ? ` (${ago(w.since)})` : '', w.lastError ? ` – last error: ${w.lastError}` : '')))) : h('p', { class: 'quiet' }, 'It waits for nothing.')];
}

function deletion(model, own) {
  const answer = model.ask(`api/deletion?id=${encodeURIComponent(own.id)}`);
  const at = (answer.value ?? []).filter((a) => a.answer).map((a) => ({ deployment: a.deployment, ...a.answer }));
  return at.length ? tree({ ...own, at, ...total(at) }) : h('p', { class: 'quiet' }, answer.error ?? 'Asking the deployments …');
}

function referrers(answers) {
  const silent = answers.filter((a) => a.error), found = answers.flatMap((a) => a.answer?.referrers ?? []);
  const more = answers.some((a) => a.answer?.nextPageToken);
  return [silent.length ? h('ul', { class: 'notes' }, silent.map((a) => h('li', { 'data-state': 'away' }, h('i', {}, '✕'), `${a.deployment}: ${a.error}`))) : null,
    silent.length && !found.length ? h('p', { class: 'quiet' }, 'None in the deployments that answered.') : table(['Resource', 'By the field', 'Behaviour'], found.map((f) => [linked(f.holder), f.path, (f.behaviour ?? 'owned').replace('BEHAVIOUR_', '')])),
    more ? h('p', {}, `These are the first ${plural(found.length, 'one')}; \`db-controller referrers\` lists all.`) : null];
}

function references(v) {
  return v.errors?.references ? h('p', { class: 'quiet' }, v.errors.references) : table(['Field', 'Refers to', 'Behaviour'], (v.references ?? []).map((f) => [f.path, linked(f.target), f.behaviour]));
}

function removals(list) {
  return table(['When', 'How', 'With', 'Requested by'], list.map((m) => [clock(m.decideTime), m.how, m.via ? linked(m.via) : 'itself', [m.actor, m.toldBy ? `, as told by ${m.toldBy}` : '']]), true);
}

/** The page that a person asked for in the form. */
export function wanted(form) { return resourcePage(new FormData(form).get('name').trim()); }
export { deploymentPage };
