// The plain page: the lists and the lag of a group, without React. Airflow shows it in a frame, as a tab of each consume DAG.

import { COLUMNS, address, indented, isAmount, isJson, label, lagText, points, read, valueText } from "./shared.js";

const PAGE_ROWS = 50;
const OF_GROUP = ["queues", "windows", "offsets", "blocked", "dead-letters", "owners"];
const OF_TOPIC = ["topic-groups", "topic-queues"];
const LISTS = ["groups", "topics", "blocked", "delay-levels", "delayed", "dead-letter-causes", "replays", "requests", "maintenance"];
const CONSUME = "rmq_consume__";

const state = Object.fromEntries(new URL(document.location.href).searchParams);
// rmq_consume__<group>, in which ".7c" stands for the character with this number in hex.
// An id with ".." has only the beginning of a long name.
if (state.dag_id?.startsWith(CONSUME) && !state.dag_id.includes("..")) {
  const group = state.dag_id.slice(CONSUME.length);
  state.group ??= group.replace(/\.([0-9a-f]{2})/g, (_, hex) => String.fromCharCode(parseInt(hex, 16)));
  state.list ??= "queues";
}
for (const name of Object.keys(state)) {
  if (!["list", "group", "topic", "offset", "sort"].includes(name)) delete state[name]; // such as the host's own
}
state.list = state.list in COLUMNS ? state.list : "groups";

// The frame follows the theme of the page around it.
try {
  document.documentElement.className = parent.document.documentElement.className.includes("dark") ? "dark" : "light";
} catch {
  // another origin: the theme of the system
}

// Text always becomes a text node: nothing of a message or a group's name is read as HTML.
const element = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "onclick") made.addEventListener("click", value);
    else if (value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
};
const part = (id) => document.getElementById(id);

const go = (changes) => {
  const next = { ...state, ...changes };
  const query = new URLSearchParams(Object.entries(next).filter(([, value]) => value !== undefined && value !== ""));
  document.location.search = `?${query}`;
};

const link = (text, changes, current) =>
  element("a", { href: "#", "aria-current": current ? "page" : undefined, onclick: (event) => { event.preventDefault(); go(changes); } }, text);

const FRESH = { offset: undefined, sort: undefined };
const cell = (column, value) => {
  if (column === "group_name" && value) return link(value, { ...FRESH, list: "queues", group: value, topic: undefined });
  if (column === "topic" && value) return link(value, { ...FRESH, list: "topic-groups", topic: value, group: undefined });
  if (isJson(value) && value.length > 60) return element("details", {}, element("summary", {}, `${value.slice(0, 40)} …`), element("pre", {}, indented(value)));
  return valueText(column, value);
};

const kind = (column, value) =>
  isAmount(column, value) ? "number" : typeof value === "string" && value.length > 40 && !isJson(value) ? "long" : "short";

const lists = () => (state.group ? OF_GROUP : state.topic ? OF_TOPIC : LISTS);

function head(columns, rows) {
  const side = (column) => (rows.some((row) => isAmount(column, row[column])) ? "number" : undefined);
  const sorted = (column) => ({ [column]: " ▲", [`-${column}`]: " ▼" })[state.sort] ?? "";
  return element("tr", {}, ...columns.map((column) =>
    element("th", { scope: "col", class: side(column) }, element("button", { title: "Sort", onclick: () => go({ offset: undefined, sort: state.sort === column ? `-${column}` : column }) }, label(column) + sorted(column)))));
}

function show(document_) {
  const columns = COLUMNS[state.list].filter((column) => document_.columns.includes(column));
  const row = (values) => element("tr", {}, ...columns.map((column) =>
    element("td", { class: kind(column, values[column]) }, cell(column, values[column]))));
  part("rows").replaceChildren(element("thead", {}, head(columns, document_.rows)), element("tbody", {}, ...document_.rows.map(row)));
  part("title").textContent = [document_.title, state.group ?? state.topic].filter(Boolean).join(": ");
  part("note").textContent = document_.total === 1 ? "1 row" : `${document_.total.toLocaleString("en")} rows`;
  const offset = Number(state.offset ?? 0);
  const { list, offset: _, ...query } = state;
  part("pages").replaceChildren(
    ...(offset > 0 ? [link("Previous", { offset: Math.max(0, offset - PAGE_ROWS) || undefined }), " "] : []),
    ...(offset + PAGE_ROWS < document_.total ? [link("Next", { offset: offset + PAGE_ROWS }), " "] : []),
    element("a", { href: address(`api/csv/${list}`, query), download: "" }, "CSV"));
}

const SVG = "http://www.w3.org/2000/svg";
function chart(pairs) {
  if (!pairs?.length) return;
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 -2 700 104");
  svg.setAttribute("width", "700");
  svg.setAttribute("role", "img");
  const title = document.createElementNS(SVG, "title");
  title.textContent = lagText(pairs);
  const line = document.createElementNS(SVG, "polyline");
  for (const [name, value] of Object.entries({ points: points(pairs, 700, 100), fill: "none", stroke: "currentColor" })) line.setAttribute(name, value);
  svg.append(title, line);
  const isFlat = pairs.every(([, lag]) => lag === 0);
  part("chart").replaceChildren(element("p", {}, title.textContent), ...(isFlat ? [] : [svg]));
}

const failed = (error) => {
  part("note").className = "error";
  part("note").textContent = error.message;
};

part("lists").replaceChildren(
  ...(state.group || state.topic ? [link("All", { ...FRESH, list: "groups", group: undefined, topic: undefined })] : []),
  ...lists().map((name) => link(label(name.replaceAll("-", "_")), { ...FRESH, list: name }, name === state.list)));
const { list, ...query } = state;
read(`api/lists/${list}`, { ...query, limit: PAGE_ROWS }).then(show).catch(failed);
if (state.group && state.list === "queues") read("api/lag", { group: state.group }).then((answer) => chart(answer.lag[state.group])).catch(failed);
