// What a deployment's status means for somebody who looks at it from afar. Each state has a sign and a word beside its colour.

import { paused } from './actions.js';
import { age, plural, seconds } from './format.js';

export const states = {
  away: { sign: '✕', word: 'no answer' },
  recovering: { sign: '◐', word: 'recovering' },
  failing: { sign: '!', word: 'failing' },
  paused: { sign: '‖', word: 'paused' },
  working: { sign: '▸', word: 'working' },
  off: { sign: '–', word: 'not running' },
  ok: { sign: '✓', word: 'at rest' },
};

/** How long a watch may be silent: a message comes at least every 5 s. */
const silent = 15;

/** Problems returns sentences about a deployment that a person should read; the first decides about its state. */
export function problems(d) {
  if (d.disabled) return [{ state: 'off', text: 'It is disabled in the registry.' }];
  if (!d.status) return [{ state: 'away', text: d.error || 'It has not been asked yet.' }];
  const s = d.status, found = [];
  const add = (state, text) => found.push({ state, text });
  if (s.epoch?.awaitingRegistry) add('recovering', 'Nothing is deleted until the registry says which deployments may refer to its resources.');
  if (s.epoch?.unconfirmed?.length) add('recovering', `Nothing is deleted until ${s.epoch.unconfirmed.join(', ')} confirmed the references to its resources.`);
  for (const f of s.failures ?? []) if (age(f.time) < 60) add('failing', `${f.handler} for ${f.deployment}: ${f.error}`);
  const silentFor = (w) => (w.primed ? `silent for ${seconds(age(w.heardTime))}` : 'without a snapshot');
  const overdue = late(s);
  if (overdue.length) add('failing', `Late: ${overdue.slice(0, 3).map((w) => `the watch of ${w.deployment} (${w.name}), ${silentFor(w)}`).join('; ')}${overdue.length > 3 ? `; and ${overdue.length - 3} more watches` : ''}.`);
  for (const p of s.pauses ?? []) {
    add('paused', `${p.actor} has paused ${paused(p, s.deployment)}: ${p.reason}`);
  }
  if (Number(s.danglingReferences)) add('failing', `${plural(s.danglingReferences, 'reference')} lost a target and need a decision (verify).`);
  for (const x of s.derivations ?? []) add('working', `References of ${x.kind} are derived again: ${x.done} of ${x.total}.`);
  return found;
}

export function late(s) { return (s.watches ?? []).filter((w) => !w.primed || age(w.heardTime) > silent); }

export function outstanding(d) { return (d.status?.outstanding ?? []).reduce((sum, o) => sum + Number(o.count), 0); }

/** The key of states for a deployment. */
export function health(d) {
  const first = problems(d)[0];
  if (first) return first.state;
  return outstanding(d) > 0 || d.status?.deletions?.length ? 'working' : 'ok';
}
