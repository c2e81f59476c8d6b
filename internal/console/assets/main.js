// The model is filled by server-sent events; a page is a function of the model and the address.

import { h, render } from './dom.js';
import { outstanding } from './health.js';
import { drawLines, mapPage } from './map.js';
import { deploymentPageOf } from './deployment.js';
import { deletionPageOf, deletionsPage } from './deletions.js';
import { stuckPage } from './stuck.js';
import { browsed, browsePageOf } from './browse.js';
import { planPageOf } from './plan.js';
import { resourcePageOf, wanted } from './resource.js';
import { graphPageOf } from './graph.js';
import { kindsPage } from './kinds.js';
import { changesPage } from './changes.js';
import { act, allow } from './actions.js';

const kept = 150; // samples of outstanding work
const sampleEvery = 2000, askAgainAfter = 3000; // ms

class Model {
  deployments = new Map();
  loaded = false;
  problem = '';
  history = [];
  #histories = new Map();
  #answers = new Map();
  #whole = false; // the answers of all deployments have arrived: a sum of some of them would look like growth

  apply(change) {
    for (const d of change.deployments ?? []) this.deployments.set(d.deployment, d);
    for (const name of change.gone ?? []) this.deployments.delete(name);
    if ('problem' in change) this.problem = change.problem;
    this.loaded = true;
    if (change.whole && !this.#whole) {
      this.#whole = true;
      this.sample();
    }
  }

  sample() {
    if (!this.#whole) return;
    const time = Date.now(), groups = {};
    for (const d of this.deployments.values()) {
      const own = {};
      for (const o of d.status?.outstanding ?? []) own[o.group] = (own[o.group] ?? 0) + Number(o.count);
      for (const [g, n] of Object.entries(own)) groups[g] = (groups[g] ?? 0) + n;
      const list = this.historyOf(d.deployment);
      if (outstanding(d) || list.length) keep(list, { time, groups: own });
      if (list.length) this.#histories.set(d.deployment, list);
    }
    keep(this.history, { time, groups });
  }

  historyOf(name) { return this.#histories.get(name) ?? []; }

  /** Returns the newest answer to a question, and asks it again when that is old: soon, or after a while if it is dear. */
  ask(path, dear = false) {
    const a = this.#answers.get(path) ?? { at: 0 };
    if (Date.now() - a.at > (dear ? 10 : 1) * askAgainAfter && !a.asking) {
      a.asking = true;
      if (this.#answers.size > 50) this.#answers.clear();
      this.#answers.set(path, a);
      fetch(path).then(async (r) => {
        const value = await r.json();
        if (r.ok) Object.assign(a, { value, error: undefined });
        else Object.assign(a, { error: value.error });
      }).catch((e) => { a.error = `The console does not answer: ${e.message}`; }).finally(() => { Object.assign(a, { at: Date.now(), asking: false }); refresh(); });
    }
    return a;
  }
}

function keep(list, point) {
  list.push(point);
  if (list.length > kept) list.shift();
}

const model = new Model();
const page = document.getElementById('page'), live = document.getElementById('live');
let chosen = null, due = false, asking = false;

function route() {
  const [, name = '', ...rest] = location.hash.slice(1).split('/');
  return { name, of: decodeURIComponent(rest.join('/')) };
}

function content({ name, of }) {
  switch (name) {
    case '': return mapPage(model);
    case 'deployment': return deploymentPageOf(model, of);
    case 'deletions': return deletionsPage(model);
    case 'deletion': return deletionPageOf(model, of);
    case 'stuck': return stuckPage(model, of || undefined);
    case 'browse': return browsePageOf(model, of);
    case 'plan': return planPageOf(model, of);
    case 'resource': return resourcePageOf(model, of);
    case 'graph': return graphPageOf(model, of);
    case 'kinds': return kindsPage(model);
    case 'changes': return changesPage(model);
    default: return [h('h1', {}, 'No such page'), h('p', {}, h('a', { href: '#/' }, 'The map'))];
  }
}

function show() {
  due = false;
  if (asking) return;
  const at = route(), main = { '': 'map', deployment: 'map', plan: 'browse', resource: 'browse', graph: 'browse', deletion: 'deletions' }[at.name] ?? at.name;
  render(page, model.problem && h('p', { class: 'problem', role: 'alert' }, `The environment cannot be read: ${model.problem}`), content(at));
  for (const a of document.querySelectorAll('nav a')) if (a.dataset.page === main) a.setAttribute('aria-current', 'page');
  else a.removeAttribute('aria-current');
  document.title = `${at.of && ['resource', 'plan', 'deployment'].includes(at.name) ? `${at.of} – ` : ''}${page.querySelector('h1')?.textContent ?? ''} – db-controller`;
  drawLines(model, chosen);
}

function refresh() {
  if (due) return;
  due = true;
  requestAnimationFrame(show);
}

/** A page of `serve` needs a token; one of `db-controller console` has the identity of its command. */
async function begin() {
  const answer = await fetch('session').then((r) => r.json()).catch(() => ({}));
  allow(answer.actions);
  if (answer.signed_in === false) return login('');
  follow();
}

function login(problem) {
  live.textContent = '○ not signed in';
  live.dataset.state = 'away';
  asking = true;
  render(page, h('h1', {}, 'Sign in'), problem && h('p', { class: 'problem', role: 'alert' }, problem),
    h('form', { id: 'login', class: 'find' }, h('label', { for: 'token' }, 'Token'), h('input', { id: 'token', name: 'token', type: 'password', autocomplete: 'off', required: '' }), h('button', {}, 'Show')));
}

async function signIn(form) {
  const token = new FormData(form).get('token').trim();
  form.reset();
  const r = await fetch('session', { method: 'POST', headers: { Authorization: `Bearer ${token}` } }).catch(() => null);
  if (r?.status !== 204) return login(r ? (await r.json()).error : 'The deployment does not answer.');
  asking = false;
  follow();
  show();
}

function follow() {
  const events = new EventSource('api/events');
  events.onopen = () => { live.textContent = '● live'; live.dataset.state = 'ok'; };
  events.onmessage = (e) => { model.apply(JSON.parse(e.data)); refresh(); };
  events.onerror = () => {
    live.textContent = '○ connection lost, trying again';
    live.dataset.state = 'away';
    if (events.readyState === EventSource.CLOSED) begin(); // an answer that is no stream: the token is no longer valid
  };
}

let before = route().name;
addEventListener('hashchange', () => {
  show();
  const { name } = route();
  if (name !== 'graph' || before !== 'graph') { page.focus(); scrollTo(0, 0); } // a graph that unfolds keeps the focus
  before = name;
});
addEventListener('resize', () => drawLines(model, chosen));
page.addEventListener('submit', (e) => { e.preventDefault(); if (e.target.id === 'login') signIn(e.target); else if (e.target.dataset.act) act(e.target, refresh); else location.hash = e.target.id === 'browse' ? browsed(e.target) : wanted(e.target); });
const choose = (e) => {
  const name = e.target.closest?.('[data-deployment]')?.dataset.deployment ?? null;
  if (name !== chosen) { chosen = name; drawLines(model, chosen); }
};
page.addEventListener('mouseover', choose);
page.addEventListener('focusin', choose);
// Arrow keys move between the cells of the map.
page.addEventListener('keydown', (e) => {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[e.key], cell = e.target.closest?.('.cell');
  if (!step || !cell) return;
  const td = cell.parentElement, row = td.parentElement, rows = [...row.parentElement.rows];
  let r = rows.indexOf(row), c = td.cellIndex;
  do { r += step[0]; c += step[1]; } while (rows[r]?.cells[c] && !rows[r].cells[c].querySelector('.cell'));
  const next = rows[r]?.cells[c]?.querySelector('.cell');
  if (next) { next.focus(); e.preventDefault(); }
});
setInterval(() => { model.sample(); refresh(); }, sampleEvery);
begin();
show();
