// What a deployment's status means for somebody who looks at it from afar. Each state has a sign and a word beside its colour.

import { paused } from './actions.js';
import { age, ago, inOrder, plural, seconds } from './format.js';

export const states = {
  away: { sign: '✕', word: 'no answer' },
  recovering: { sign: '◐', word: 'recovering' },
  failing: { sign: '!', word: 'failing' },
  overdue: { sign: '◷', word: 'deletion waits' },
  paused: { sign: '‖', word: 'paused' },
  waits: { sign: '…', word: 'waits' },
  working: { sign: '▸', word: 'working' },
  off: { sign: '–', word: 'not running' },
  ok: { sign: '✓', word: 'at rest' },
};

/** The most urgent states come first. */
export const severity = Object.keys(states);

/** How long a watch may be silent: a message comes at least every 5 s. */
const silent = 15;

/** How long a deletion may make no progress before a person should look. */
const patience = 60;

/** Whether a deployment cannot be reached: it neither answers nor refuses. */
export function unreached(d) { return !d.disabled && !d.status && /^(Unavailable|DeadlineExceeded)\b|cannot be reached/.test(d.error ?? ''); }

/** The names of the deployments that cannot be reached. */
export function unreachedOf(all) { return new Set(all.filter(unreached).map((d) => d.deployment)); }

/** How long it has not answered, in words. The console knows of no silence before its first look. */
export function silence(since, answered) {
  const s = age(since);
  if (!since || s < 1) return 'does not answer';
  return `has not answered for ${answered ? '' : 'at least '}${seconds(s)}`;
}

/**
 * Problems returns sentences about a deployment that a person should read; the most urgent decides about its state. It waits where nothing
 * is wrong but that others, of the names in dark, cannot be reached.
 */
export function problems(d, dark) {
  if (d.disabled) return [{ state: 'off', text: 'It is disabled in the registry.' }];
  if (!d.status) return [{ state: 'away', text: d.error ? `It ${unreached(d) ? silence(d.silentSince, d.answered) : 'shows no status'}: ${d.error}` : 'It has not been asked yet.' }];
  const s = d.status, found = [];
  const add = (state, text) => found.push({ state, text });
  for (const n of s.notReady ?? []) add('failing', `It is not ready: ${n.check}: ${n.reason}`);
  for (const p of expired(s)) add('failing', `The lease of its process ${p.name} expired ${ago(p.expireTime)}: nobody works on ${plural((p.shards ?? []).length, 'shard')}.`);
  if (s.epoch?.awaitingRegistry) add('recovering', 'Nothing is deleted until the registry says which deployments may refer to its resources.');
  if (s.epoch?.unconfirmed?.length) add('recovering', `Nothing is deleted until ${[...s.epoch.unconfirmed].sort(inOrder).join(', ')} confirmed the references to its resources.`);
  for (const f of s.failures ?? []) if (age(f.time) < 60) add(awaits(f, dark) ? 'waits' : 'failing', `${f.handler} for ${f.deployment}: ${f.error}`);
  const silentFor = (w) => (w.primed ? `silent for ${seconds(age(w.heardTime))}` : 'without a snapshot');
  for (const [state, overdue] of Object.entries(Object.groupBy(late(s), (w) => (dark.has(w.deployment) ? 'waits' : 'failing')))) add(state, `Late: ${overdue.slice(0, 3).map((w) => `the watch of ${w.deployment} (${w.name}), ${silentFor(w)}`).join('; ')}${overdue.length > 3 ? `; and ${overdue.length - 3} more watches` : ''}.`);
  for (const p of s.pauses ?? []) {
    add('paused', `${p.actor} has paused ${paused(p, s.deployment)}: ${p.reason}`);
  }
  const deleting = (s.outstanding ?? []).find((o) => o.group === 'deleting');
  if (Number(s.deletionsTotal ?? 0) > (s.deletions ?? []).length && deleting && age(deleting.oldestTime) > patience) add('overdue', `${plural(deleting.count, 'resource')} in DELETING, the oldest for ${seconds(age(deleting.oldestTime))}: the page Stuck says why.`);
  for (const x of overdue(s)) add('overdue', `The deletion of ${x.root} has run for ${seconds(age(x.startTime))}, and nothing of it was removed for ${seconds(age(x.updateTime))}: the page Stuck says why.`);
  if (Number(s.danglingReferences)) add('failing', `${plural(s.danglingReferences, 'reference')} lost a target and need a decision (verify).`);
  for (const x of s.derivations ?? []) add('working', `References of ${x.kind} are derived again: ${x.done} of ${x.total}.`);
  return found.sort((a, b) => severity.indexOf(a.state) - severity.indexOf(b.state));
}

/** The processes whose leases have expired: their shards are nobody's. */
export function expired(s) { return (s.processes ?? []).filter((p) => age(p.expireTime) > 0); }

// Deletions that have not come on for a while: somebody has to look at what blocks them.
function overdue(s) { return (s.deletions ?? []).filter((x) => age(x.updateTime) > patience && age(x.startTime) > patience); }

// A failure that says no more than that a deployment which nobody reaches cannot be reached.
function awaits(f, dark) { return dark.has(f.deployment) && new RegExp(`^(.*: )?${f.deployment.replaceAll('.', '\\.')} cannot be reached|^(Unavailable|DeadlineExceeded)\\b`).test(f.error ?? ''); }

export function late(s) { return (s.watches ?? []).filter((w) => !w.primed || age(w.heardTime) > silent).sort((a, b) => inOrder(a.deployment, b.deployment) || inOrder(a.name, b.name)); }

export function outstanding(d) { return (d.status?.outstanding ?? []).reduce((sum, o) => sum + Number(o.count), 0); }

/** The key of states for a deployment. */
export function health(d, dark) {
  const first = problems(d, dark)[0];
  if (first) return first.state;
  return outstanding(d) > 0 || d.status?.deletions?.length ? 'working' : 'ok';
}
