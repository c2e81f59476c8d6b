// Elements without innerHTML: every text from a deployment is a text node, so that no name can become markup.

const SVG = 'http://www.w3.org/2000/svg';

/** Returns an element. Attributes that are false, null or undefined are left out; children may be nested arrays. */
export function h(tag, attributes, ...children) { return build(document.createElement(tag), attributes, children); }

/** Returns an SVG element. */
export function svg(tag, attributes, ...children) { return build(document.createElementNS(SVG, tag), attributes, children); }

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === false || value === null || value === undefined) continue;
    element.setAttribute(name, value === true ? '' : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === false || child === null || child === undefined) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/**
 * Makes the children of an element equal to new ones, and keeps the nodes that are there: the focus, what is typed and selected, and the
 * scroll position stay.
 */
export function render(into, ...children) {
  const wanted = into.cloneNode(false);
  build(wanted, {}, children);
  patchChildren(into, wanted);
}

function patchChildren(old, wanted) {
  const before = [...old.childNodes], after = [...wanted.childNodes];
  after.forEach((node, i) => {
    if (i >= before.length) old.append(node);
    else patch(before[i], node);
  });
  before.slice(after.length).forEach((node) => node.remove());
}

function patch(old, wanted) {
  if (old.nodeName !== wanted.nodeName || old.dataset?.key !== wanted.dataset?.key) return old.replaceWith(wanted);
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== wanted.data) old.data = wanted.data;
    return;
  }
  for (const { name } of [...old.attributes]) if (!wanted.hasAttribute(name) && name !== 'open' && name !== 'style') old.removeAttribute(name);
  for (const { name, value } of wanted.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  if (!('keep' in old.dataset)) patchChildren(old, wanted);
}
