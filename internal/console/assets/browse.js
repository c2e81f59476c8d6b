// Browse: the resources of one deployment, by kind and by the beginning of their names, page by page.

import { h } from './dom.js';
import { ago, broken, browsePage, clock, inOrder, resourcePage } from './format.js';
import { table } from './table.js';

export function browsePageOf(model, of) {
  const at = new URLSearchParams(of), deployments = [...model.deployments.keys()].sort(inOrder);
  const deployment = at.get('deployment') ?? deployments[0];
  const head = [h('h1', {}, 'Browse'), h('form', { id: 'browse', class: 'find', role: 'search' },
    h('label', {}, 'Deployment ', h('select', { name: 'deployment' }, deployments.map((d) => h('option', { value: d, selected: d === deployment }, d)))),
    h('label', {}, 'Kind ', h('input', { name: 'kind', value: at.get('kind') ?? '', placeholder: 'all', autocomplete: 'off', spellcheck: 'false' })),
    h('label', {}, 'Name begins with ', h('input', { name: 'prefix', value: at.get('prefix') ?? '', placeholder: 'projects/acme', autocomplete: 'off', spellcheck: 'false' })),
    h('label', {}, h('input', { type: 'checkbox', name: 'deleted', value: '1', checked: at.get('deleted') === '1' }), ' also hidden ones'), h('button', {}, 'Show'))];
  if (!at.get('deployment')) return [head, h('p', { class: 'quiet' }, 'Choose a deployment.')];
  const answer = model.ask(`api/resources?${at}`);
  if (!answer.value) return [head, h('p', { class: 'quiet' }, answer.error ?? `Asking ${deployment} …`)];
  const list = answer.value.resources ?? [], next = answer.value.nextPageToken;
  return [head, answer.error && h('p', { class: 'problem' }, answer.error),
    list.length ? table(['Name', 'Kind', 'State', 'Created'], list.map((r) => [h('a', { href: resourcePage(`//${deployment}/${r.name}`) }, broken(r.name)), r.kind, r.purgeTime ? `hidden until ${clock(r.purgeTime)}` : state(r), r.createTime ? ago(r.createTime) : '']), true) : h('p', { class: 'lead' }, 'None that you may read.'),
    next || at.get('page') ? h('p', { class: 'choice' }, at.get('page') ? h('a', { href: browsePage({ ...Object.fromEntries(at), page: '' }) }, 'First page') : null, ' ', next ? h('a', { href: browsePage({ ...Object.fromEntries(at), page: next }) }, 'Next page') : null) : null];
}

function state(r) { return (r.state ?? '').replace('STATE_', ''); }

/** Returns the address that the form asks for. */
export function browsed(form) { return browsePage(Object.fromEntries(new FormData(form))); }
