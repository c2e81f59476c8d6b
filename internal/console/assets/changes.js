// Who changed regions, services, deployments and rights.

import { h } from './dom.js';
import { broken, clock } from './format.js';
import { table } from './table.js';

export function changesPage(model) {
  const answer = model.ask('api/changes'), head = h('h1', {}, 'Changes');
  if (answer.error) return [head, h('p', {}, answer.error)];
  if (!answer.value) return [head, h('p', { class: 'quiet' }, 'Asking the registry …')];
  const list = answer.value.revisions ?? [];
  return [head,
    h('p', { class: 'lead' }, list.length ? 'What operators changed, the newest change first.' : 'Nothing was changed yet.'),
    list.length ? table(['When', 'Who', 'What'], list.map((r) => [clock(r.time), [broken(r.actor), h('p', { class: 'quiet' }, `by ${r.proof}, ${r.method}`), r.reason && h('p', {}, r.reason)], what(r.changes ?? [])])) : null,
    answer.value.nextPageToken && h('p', { class: 'quiet' }, h('code', {}, 'db-controller history'), ' lists earlier ones.')];
}

function what(changes) {
  return changes.map((change) => {
    const [line, ...difference] = change.split('\n');
    return h('div', {}, broken(line), difference.length ? h('ul', {}, difference.map((d) => h('li', {}, broken(d.trim())))) : null);
  });
}
