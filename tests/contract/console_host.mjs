// A stand-in for Airflow's UI in Node: React's hooks as far as the console uses them, tags for Chakra, and a router.
// Reads {"page", "search", "answers"} on standard input; prints {"text", "reads", "links"} of the page once nothing changes.

import { readFileSync } from "node:fs";

const { module, search, answers } = JSON.parse(readFileSync(0, "utf8"));
const stores = new Map();
let hooks, at, changed;
const next = (make) => {
  if (at === hooks.length) hooks.push(make());
  return hooks[at++];
};
const same = (a, b) => a !== undefined && b !== undefined && a.length === b.length && a.every((value, n) => Object.is(value, b[n]));
const React = {
  createElement: (type, props, ...children) => ({ type, props: { ...props, ...(children.length ? { children } : {}) } }),
  useState: (start) => {
    const hook = next(() => ({ value: typeof start === "function" ? start() : start }));
    hook.set ??= (value) => {
      const made = typeof value === "function" ? value(hook.value) : value;
      if (!Object.is(made, hook.value)) [hook.value, changed] = [made, true];
    };
    return [hook.value, hook.set];
  },
  useEffect: (effect, deps) => {
    const hook = next(() => ({}));
    if (!same(hook.deps, deps)) [hook.deps, hook.due] = [deps, effect];
  },
  useMemo: (make, deps) => {
    const hook = next(() => ({}));
    if (!same(hook.deps, deps)) [hook.deps, hook.value] = [deps, make()];
    return hook.value;
  },
  useCallback: (call, deps) => React.useMemo(() => call, deps),
};
const tags = (name) => new Proxy({ tag: name }, { get: (target, part) => (part === "tag" ? name : tags(`${name}.${String(part)}`)) });
const links = [];
Object.assign(globalThis, {
  React,
  ChakraUI: new Proxy({}, { get: (_, name) => tags(name) }),
  ReactRouterDOM: {
    useSearchParams: () => [new URLSearchParams(search), () => {}],
    Link: ({ to, children }) => {
      links.push(typeof to === "string" ? to : to.search);
      return children;
    },
  },
});

const reads = [];
const HERE = new URL(".", module).href;
globalThis.fetch = async (url) => {
  const path = url.replace(HERE, "");
  reads.push(path);
  const text = answers[path.split("?")[0]];
  return { ok: text !== undefined, status: text === undefined ? 404 : 200, text: async () => text ?? '{"message": "no answer"}' };
};

const textOf = (node, path) => {
  if (node === null || node === undefined || typeof node === "boolean") return "";
  if (typeof node !== "object") return `${node} `;
  if (Array.isArray(node)) return node.map((one, n) => textOf(one, `${path}/${one?.props?.key ?? n}`)).join("");
  const { type, props } = node;
  if (typeof type === "function") {
    const key = `${path}/${type.name}/${props.key ?? ""}`;
    [hooks, at] = [stores.get(key) ?? [], 0];
    stores.set(key, hooks);
    const mine = hooks;
    const made = type(props);
    const text = textOf(made, key);
    for (const hook of mine) {
      const { due } = hook;
      delete hook.due;
      due?.();
    }
    return text;
  }
  return (typeof type === "string" ? "" : "") + textOf(props.children, `${path}/${type?.tag ?? type}`);
};

await import(module);
let text = "";
for (let round = 0; round < 50; round++) {
  changed = false;
  links.length = 0;
  text = textOf(React.createElement(globalThis.AirflowPlugin, {}), "");
  for (let turn = 0; turn < 20; turn++) await Promise.resolve();
  if (!changed) break;
}
console.log(JSON.stringify({ text, reads: [...new Set(reads)], links, settled: !changed }));
