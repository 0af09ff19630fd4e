// A document in Node, as far as the plain page uses one. Reads {"module", "search", "answers"} on standard input; prints the
// texts of its parts, and what it reads.

import { readFileSync } from "node:fs";

const { module, search, answers } = JSON.parse(readFileSync(0, "utf8"));
const HERE = new URL(".", module).href;

class Node_ {
  constructor(name) {
    Object.assign(this, { name, children: [], attributes: {} });
  }
  append(...children) {
    this.children.push(...children);
  }
  replaceChildren(...children) {
    this.children = children;
  }
  setAttribute(name, value) {
    this.attributes[name] = String(value);
  }
  addEventListener() {}
  set textContent(text) {
    this.children = [text];
  }
  get textContent() {
    return this.children.map((child) => (typeof child === "string" ? child : child.textContent)).join(" ");
  }
}
const parts = {};
globalThis.document = {
  location: { href: `http://console.test/rmq/${search}` },
  documentElement: {},
  createElement: (name) => new Node_(name),
  createElementNS: (_, name) => new Node_(name),
  getElementById: (id) => (parts[id] ??= new Node_(id)),
};
const reads = [];
globalThis.fetch = async (url) => {
  const path = url.replace(HERE, "");
  reads.push(path);
  const text = answers[path.split("?")[0]];
  return { ok: text !== undefined, status: text === undefined ? 404 : 200, text: async () => text ?? '{"message": "no answer"}' };
};
await import(module);
for (let turn = 0; turn < 50; turn++) await Promise.resolve();
console.log(JSON.stringify({ parts: Object.fromEntries(Object.entries(parts).map(([id, part]) => [id, part.textContent])), reads }));
