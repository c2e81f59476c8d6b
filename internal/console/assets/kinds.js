// The kinds of the versions that run, and their references: a picture, and the same as a table.

import { h } from './dom.js';
import { broken } from './format.js';
import { table } from './table.js';

export function kindsPage(model) {
  const answer = model.ask('api/kinds', true), head = h('h1', {}, 'Kinds');
  if (answer.error) return [head, h('p', {}, answer.error)];
  if (!answer.value) return [head, h('p', { class: 'quiet' }, 'Asking the registry …')];
  const { kinds, edges } = answer.value;
  if (!kinds?.length) return [head, h('p', { class: 'lead' }, 'No service is described yet.')];
  return [head,
    h('p', { class: 'lead' }, 'The versions that run. An arrow goes from the kind that refers to the kind that it refers to; red refuses a deletion, blue takes the holder along, brown unsets the field.'),
    h('p', { class: 'kinds', tabindex: '0', role: 'region', 'aria-label': 'Picture of the kinds, which scrolls' }, h('a', { href: 'api/kinds.svg' }, h('img', { src: 'api/kinds.svg', alt: 'The kinds and their references, as in the table below' }))),
    edges?.length ? table(['Kind', 'Field', 'Refers to', 'Behaviour'], edges.map((e) => [broken(e.from), e.fields.map((f) => h('div', {}, f)), broken(e.to), e.behaviour])) : null];
}
