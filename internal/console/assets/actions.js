// What a person can do where the server allows it. To pause, to resume and to retry need a reason, which the deployment stores; deletes have a record.

import { h } from './dom.js';

const handlers = { '': 'all deletions', OWNED_PENDING: 'owned-pending', OWNED_DELETING: 'owned-deleting', SUBSCRIBED_DELETING: 'subscribed-deleting' };

let allowed = false;
const answers = new Map();

/** The server says whether it takes actions. */
export function allow(yes) { allowed = yes === true; }

/** Returns what is paused, for people. */
export function paused(p, deployment) {
  const what = p.handler ? handlers[p.handler] ?? p.handler : 'deletions';
  return p.of === deployment ? what : `${what} ${p.handler ? 'for' : 'of'} ${p.of}`;
}

/** The form of a deployment. */
export function deploymentActions(name, others) {
  return form(name, [
    h('fieldset', {}, h('legend', {}, 'Do'), ['pause', 'resume', 'retry'].map((v, i) => h('label', {}, h('input', { type: 'radio', name: 'do', value: v, checked: i === 0, required: true }), ` ${v} `))),
    h('input', { type: 'hidden', name: 'deployment', value: name }),
    h('label', {}, 'What is paused or resumed ', h('select', { name: 'handler' }, Object.entries(handlers).map(([v, text]) => h('option', { value: v }, text)))),
    h('label', {}, 'For ', h('select', { name: 'of' }, h('option', { value: '' }, 'all deployments'), others.filter((o) => o !== name).sort().map((o) => h('option', { value: o }, o)))),
  ], 'Pause, resume, retry');
}

/** The form of a resource; of a hidden one, to bring it back. */
export function resourceActions(name, hidden) {
  const [what, title] = hidden ? ['undelete', 'Undelete it'] : ['retry', 'Retry its work'];
  return form(name, [h('input', { type: 'hidden', name: 'do', value: what }), h('input', { type: 'hidden', name: 'name', value: name })], title, !hidden);
}

/** The form of a delete whose plan is accepted. It can be undone by default. */
export function deleteAction(name, accepted) {
  if (!accepted) return null;
  const until = [['7d', 'hide it for 7 days, then remove it'], ['1d', 'hide it for a day'], ['1h', 'hide it for an hour'], ['', 'as its kind says: remove it, if it has no retention']];
  return form(name, [h('input', { type: 'hidden', name: 'do', value: 'delete' }), h('input', { type: 'hidden', name: 'name', value: name }),
    h('label', {}, 'How ', h('select', { name: 'retention' }, until.map(([v, text]) => h('option', { value: v }, text))))], 'Delete it', false);
}

/** The button that takes the reference out of a resource that blocks. */
export function detachAction(b) {
  if (!allowed || !b.path || b.undecided || b.unanswered) return null;
  const key = `${b.holder} ${b.path} ${b.target}`, answer = answers.get(key);
  return h('form', { class: 'act small', 'data-act': key, 'data-key': key }, Object.entries({ do: 'detach', name: b.holder, path: b.path, target: b.target }).map(([name, value]) => h('input', { type: 'hidden', name, value })),
    h('button', { title: `Unset ${b.path} of ${b.holder}` }, 'Detach'), h('span', { role: 'status', 'data-state': answer?.state ?? null }, answer ? [h('i', {}, answer.state === 'ok' ? '✓' : '✕'), ` ${answer.text}`] : ''));
}

function form(key, fields, title, reasoned = true) {
  if (!allowed) return null;
  const answer = answers.get(key);
  return h('section', { class: 'card', 'data-key': title }, h('h2', {}, title),
    h('form', { class: 'act', 'data-act': key }, fields, reasoned ? h('label', { class: 'reason' }, 'Reason ', h('input', { name: 'reason', required: true, maxlength: 1000, autocomplete: 'off' })) : null, h('button', {}, 'Do it')),
    h('p', { role: 'status', class: 'answer', 'data-state': answer?.state ?? null }, answer ? [h('i', {}, answer.state === 'ok' ? '✓' : '✕'), ` ${answer.text}`] : ''));
}

/** Sends a form. */
export async function act(of, done) {
  const fields = Object.fromEntries(new FormData(of)), say = (state, text) => { answers.set(of.dataset.act, { state, text }); done(); };
  const r = await fetch('api/action', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(fields) }).catch(() => null);
  if (!r) return say('away', 'The console does not answer.');
  if (!r.ok) return say('away', (await r.json()).error);
  of.reset();
  say('ok', `${fields.do}: done.`);
}
