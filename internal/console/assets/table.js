// Tables.

import { h } from './dom.js';

/** Returns a table, whose rows are lists of labelled values where the window is narrow. */
export function table(head, rows) {
  if (!rows.length) return h('p', { class: 'quiet' }, 'None.');
  return h('div', { class: 'scroll' }, h('table', { class: 'rows' }, h('thead', {}, h('tr', {}, head.map((t) => h('th', { scope: 'col' }, t)))), h('tbody', {}, rows.map((r) => h('tr', {}, r.map((c, i) => h('td', { 'data-label': head[i], 'data-empty': c === '' }, h('div', {}, c))))))));
}
