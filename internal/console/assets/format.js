// Numbers, times and names as people read them.

import { h } from './dom.js';

const numbers = new Intl.NumberFormat('en');

export function count(n) { return numbers.format(Number(n ?? 0)); }

export function plural(n, noun) { return `${count(n)} ${noun}${Number(n) === 1 ? '' : 's'}`; }

/** Returns the seconds since a time in RFC 3339. */
export function age(time) { return Math.max(0, (Date.now() - Date.parse(time)) / 1000); }

/** Returns a length of time in its two greatest units. */
export function seconds(s) {
  if (s < 1) return 'less than 1 s';
  if (s < 60) return `${Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min${s % 60 < 1 ? '' : ` ${Math.floor(s % 60)} s`}`;
  if (s < 86400) return `${Math.floor(s / 3600)} h${s % 3600 < 60 ? '' : ` ${Math.floor((s % 3600) / 60)} min`}`;
  return `${Math.floor(s / 86400)} d${s % 86400 < 3600 ? '' : ` ${Math.floor((s % 86400) / 3600)} h`}`;
}

export function ago(time) { return time ? `${seconds(age(time))} ago` : 'never'; }

export function clock(time) { return time ? new Date(time).toISOString().replace('T', ' ').replace(/\.\d+Z$/, ' UTC') : ''; }

/** The order of names: region-2 comes before region-10. */
export const inOrder = new Intl.Collator('en', { numeric: true }).compare;

/** Returns a name that may break after each slash and dot. */
export function broken(name) { return String(name ?? '').split(/(?<=[/.])(?!\/)/).flatMap((part, i) => (i ? [h('wbr'), part] : [part])); }

/** Returns a text in which each full name of a resource is a link to its page. A pattern, with a star, is none. */
export function linked(text) {
  return String(text ?? '').split(/(\/\/[^/\s]+\/[^/\s]+(?:\/[^/\s,;()]+)+)/).map((part, i) => (i % 2 && !part.includes('*') ? h('a', { href: resourcePage(part) }, broken(part)) : broken(part)));
}

/** Returns the address of the page of a deployment or a resource. */
export function deploymentPage(name) { return `#/deployment/${encodeURIComponent(name)}`; }
export function resourcePage(name) { return `#/resource/${encodeURIComponent(name)}`; }
export function graphPage(name, open = []) { return `#/graph/${encodeURIComponent(new URLSearchParams([['name', name], ...open.map((n) => ['open', n])]))}`; }
export function deletionPage(id) { return `#/deletion/${encodeURIComponent(id)}`; }
export function planPage(name) { return `#/plan/${encodeURIComponent(name)}`; }
export function browsePage(fields) { return `#/browse/${encodeURIComponent(new URLSearchParams(Object.entries(fields).filter(([, v]) => v)))}`; }
