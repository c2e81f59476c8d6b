// Tables.

import { h } from './dom.js';

/** Returns a table. Its rows are lists of labelled values where it has little room; a wide table needs more. */
export function table(head, rows, wide = false) {
  if (!rows.length) return h('p', { class: 'quiet' }, 'None.');
  return h('div', { class: 'scroll' }, h('table', { class: wide ? 'rows wide' : 'rows' }, h('thead', {}, h('tr', {}, head.map((t) => h('th', { scope: 'col' }, t)))), h('tbody', {}, rows.map((r) => h('tr', {}, r.map((c, i) => h('td', { 'data-label': head[i], 'data-empty': c === '' }, h('div', {}, c))))))));
}
