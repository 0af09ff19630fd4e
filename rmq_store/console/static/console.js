// The console as a page of Airflow's UI: React and Chakra are the host's (globals), so there is no build, and the page
// follows its theme. The address after "?" says what is shown, so that links and the back button work.

import {
  COLUMNS, OUTCOMES, address, indented, isAmount, isJson, isPaused, isReplay, isTime, label, lagText, placeOf, points, read,
  runOf, runPath, runText, shares, timeText, trigger, valueText,
} from "./shared.js";

const { React, ReactRouterDOM, ChakraUI } = globalThis;
const { createElement: h, useCallback, useEffect, useMemo, useState } = React;
const { Badge, Box, Button, Dialog, Flex, Heading, Input, Link, Spinner, Table, Text } = ChakraUI;

const PAGE_ROWS = 25;

// --- data --------------------------------------------------------------------------------------------------------

// {data, error, loading} of a JSON route; again() reads it again. A path of null reads nothing.
function useAnswer(path, query = {}) {
  const [state, setState] = useState({ data: null, error: null, loading: path !== null });
  const [round, setRound] = useState(0);
  const key = path === null ? null : address(path, query);
  useEffect(() => {
    if (key === null) {
      setState({ data: null, error: null, loading: false });
      return undefined;
    }
    const aborter = new AbortController();
    setState((old) => ({ ...old, loading: true }));
    read(path, query, aborter.signal)
      .then((data) => setState({ data, error: null, loading: false }))
      .catch((error) => aborter.signal.aborted || setState({ data: null, error, loading: false }));
    return () => aborter.abort();
  }, [key, round]);
  return { ...state, again: useCallback(() => setRound((n) => n + 1), []) };
}

// --- small parts -------------------------------------------------------------------------------------------------

const Failure = ({ error }) =>
  error ? h(Box, { role: "alert", borderWidth: 1, borderColor: "red.solid", color: "red.fg", p: 3, my: 2 }, error.message) : null;

// Says that something is being read, also to a screen reader.
const Waiting = ({ when = true }) => (when ? h(Spinner, { size: "sm", "aria-busy": true, "aria-label": "Reading" }) : null);

const RouterLink = ({ to, children, ...more }) => h(Link, { asChild: true, color: "fg.info", display: "inline", ...more }, h(ReactRouterDOM.Link, { to }, children));

// A link inside the console: what changes in the address.
function To({ go, children, ...more }) {
  const [search] = ReactRouterDOM.useSearchParams();
  const dag = search.get("dag_id");
  const query = new URLSearchParams(dag ? { ...go, dag_id: dag } : go).toString();
  return h(RouterLink, { to: { search: `?${query}` }, ...more }, children);
}

const RunLink = ({ id }) => {
  const run = runOf(id);
  return run ? h(RouterLink, { to: runPath(run), title: run.runId }, runText(run)) : id || "";
};

// A long text of JSON is cut; a click shows all of it.
const Json = ({ text }) =>
  text.length <= 60 ? h("code", null, text) : h("details", null,
    h("summary", { style: { cursor: "pointer" } }, h("code", { style: { whiteSpace: "nowrap" } }, `${text.slice(0, 40)} …`)),
    h(Box, { as: "pre", fontSize: "xs", maxH: "300px", overflow: "auto", whiteSpace: "pre-wrap", overflowWrap: "anywhere", minW: "50ch" }, indented(text)));

const Sparkline = ({ pairs, width = 90, height = 24, title }) =>
  h("svg", { width, height: height + 4, role: "img", "aria-label": title, viewBox: `0 -2 ${width} ${height + 4}`, style: { maxWidth: "100%" } },
    h("title", null, title),
    h("polyline", { points: points(pairs, width, height), fill: "none", stroke: "currentColor", strokeWidth: 1.5 }));

function Chart({ pairs }) {
  if (!pairs?.length) return h(Text, { color: "fg.muted" }, "No window has moved an offset of this group yet.");
  const most = Math.max(...pairs.map(([, lag]) => lag));
  const text = h(Text, { fontSize: "sm", color: "fg.muted", mb: 1 }, lagText(pairs));
  if (most === 0) return text;
  return h(Box, { maxW: "720px", mb: 4 }, text,
    h(Box, { color: "fg.info", borderBottomWidth: 1 }, h(Sparkline, { pairs, width: 700, height: 120, title: lagText(pairs) })),
    h(Flex, { justify: "space-between", fontSize: "xs", color: "fg.muted" },
      h("span", null, timeText(pairs[0][0])), h("span", null, timeText(pairs.at(-1)[0]))));
}

const OutcomeBar = ({ row }) =>
  h(Box, { minW: "160px" },
    h(Flex, { w: "160px", h: "8px", "aria-hidden": true },
      shares(row).map(({ name, share }) => h("span", { key: name, style: { width: `${share * 100}%`, minWidth: 2, background: OUTCOMES[name] } }))),
    h(Text, { fontSize: "xs", color: "fg.muted" }, shares(row).map(({ name, count }) => `${count.toLocaleString("en")} ${name}`).join(", ")));

function Cell({ column, row }) {
  const value = row[column];
  if (column === "outcomes") return h(OutcomeBar, { row });
  if (column === "request_id" || column === "last_request") return h(RunLink, { id: value });
  if (column === "group_name" && value) return h(To, { go: { page: "group", group: value } }, value);
  if (["topic", "real_topic", "original_topic"].includes(column) && value) return h(To, { go: { page: "topic", topic: value } }, value);
  if (["unique_key", "offset_msg_id"].includes(column) && value) return h(To, { go: { page: "message", id: value } }, value);
  if (isJson(value)) return h(Json, { text: value });
  return valueText(column, value);
}

// Times stay on one line, amounts end on one line, and only a long text is broken.
const cellStyle = (column, value) => ({
  verticalAlign: "top", textAlign: isAmount(column, value) ? "end" : "start", fontVariantNumeric: "tabular-nums",
  ...(isTime(column) || isAmount(column, value) || String(value).length <= 24 ? { whiteSpace: "nowrap" } : {}),
  ...(typeof value === "string" && value.length > 40 && !isJson(value) ? { overflowWrap: "anywhere", minW: "28ch" } : {}),
});

// A page of a list, sorted and cut by the server. extra: more columns, {name: row => node}; warn: whether a row is red.
function List({ name, filters = {}, extra = {}, warn, onRows, empty = "Nothing." }) {
  const [state, setState] = useState({ offset: 0, sort: "" });
  const query = { ...filters, limit: PAGE_ROWS, offset: state.offset, sort: state.sort };
  const { data, error, loading, again } = useAnswer(`api/lists/${name}`, query);
  const key = JSON.stringify(filters);
  useEffect(() => setState((old) => ({ ...old, offset: 0 })), [name, key]);
  useEffect(() => { if (data && onRows) onRows(data.rows); }, [data]);
  const sortBy = (column) =>
    setState((old) => ({ offset: 0, sort: old.sort === column ? `-${column}` : old.sort === `-${column}` ? "" : column }));
  if (error) return h(Failure, { error });
  if (!data) return h(Box, { my: 2 }, h(Waiting));
  const columns = COLUMNS[name];
  const arrow = (column) => ({ [column]: " ▲", [`-${column}`]: " ▼" })[state.sort] ?? "";
  const side = (column) => (data.rows.some((row) => isAmount(column, row[column])) ? "end" : "start");
  return h(Box, { mb: 6, opacity: loading ? 0.6 : 1, "aria-busy": loading },
    h(Flex, { align: "center", gap: 2, mb: 1 },
      h(Heading, { size: "sm" }, `${data.title} (${data.total.toLocaleString("en")})`),
      h(Button, { size: "xs", variant: "ghost", onClick: again, "aria-label": `Refresh ${data.title}` }, "Refresh"),
      data.total > 0 && h(Link, { href: address(`api/csv/${name}`, { ...filters, sort: state.sort }), download: true, fontSize: "xs", color: "fg.info", "aria-label": `${data.title} as CSV` }, "CSV")),
    data.total === 0 ? h(Text, { color: "fg.muted", fontSize: "sm" }, empty) : h(Box, { overflowX: "auto" }, h(Table.Root, { size: "sm", striped: true, "aria-label": data.title },
      h(Table.Header, null, h(Table.Row, null,
        columns.map((column) => h(Table.ColumnHeader, { key: column, textAlign: side(column), whiteSpace: "nowrap", "aria-sort": arrow(column) ? (state.sort[0] === "-" ? "descending" : "ascending") : "none" },
          column === "outcomes" ? h("strong", null, "Outcomes") : h("button", { type: "button", style: { cursor: "pointer", fontWeight: 600 }, title: "Sort", onClick: () => sortBy(column) }, label(column) + arrow(column)))),
        Object.keys(extra).map((title) => h(Table.ColumnHeader, { key: title, whiteSpace: "nowrap", fontWeight: 600 }, title)))),
      h(Table.Body, null, data.rows.map((row, at) => h(Table.Row, { key: at, color: warn?.(row) ? "red.fg" : undefined },
        columns.map((column) => h(Table.Cell, { key: column, ...cellStyle(column, row[column]) }, h(Cell, { column, row }))),
        Object.entries(extra).map(([title, node]) => h(Table.Cell, { key: title, verticalAlign: "top", ...(title === " " ? { position: { base: "static", lg: "sticky" }, right: 0, ...(at % 2 ? { bg: "bg" } : {}) } : {}) }, node(row)))))))),
    data.total > PAGE_ROWS && h(Flex, { gap: 2, mt: 2, align: "center" },
      h(Button, { size: "xs", disabled: state.offset === 0, onClick: () => setState((old) => ({ ...old, offset: Math.max(0, old.offset - PAGE_ROWS) })) }, "Previous"),
      h(Text, { fontSize: "sm" }, `${state.offset + 1} to ${Math.min(state.offset + PAGE_ROWS, data.total)}`),
      h(Button, { size: "xs", disabled: state.offset + PAGE_ROWS >= data.total, onClick: () => setState((old) => ({ ...old, offset: old.offset + PAGE_ROWS })) }, "Next")));
}

// --- actions: a form that triggers a DAG by Airflow's API ----------------------------------------------------------

const APPROVE = ["approve", "Wait for an approval of the dry run", false];
const DRY_MOVE = ["dry_run", "Dry run: only show what would move", true];
// fields: name, title, needed. switches: name, title, how it is at first.
const FORMS = {
  consume: (group, dagId) => ({ title: `Consume ${group}`, dagId, fixed: {}, fields: [["until", "Only messages stored before this time"], ["max_messages", "At most this many messages of each shard"]] }),
  replay: (group) => ({ title: `Replay for ${group}`, dagId: "rmq_replay", fixed: { group }, fields: [["topic", "Topic", true], ["from", "From this time, such as 2026-01-31T12:00:00Z", true], ["until", "Until this time"], ["reason", "Reason"]], switches: [["dry_run", "Dry run: only show what would be read", false], APPROVE, ["finish", "Then consume its retries, as they become due, until none is left", false]] }),
  reprocess: (group) => ({ title: `Another attempt of ${group}`, dagId: "rmq_replay", fixed: { group }, fields: [["reprocess", "Reason", true]] }),
  reset: (group) => ({ title: `Reset offsets of ${group}`, dagId: "rmq_reset_offset", fixed: { group }, fields: [["topic", "Topic", true], ["to", "To: time, offset, min or max", true], ["time", "Time"], ["offset", "Offset"], ["reason", "Reason, kept in the offset history", true]], switches: [DRY_MOVE, APPROVE] }),
  undo: (group) => ({ title: `Undo the last action on ${group}`, dagId: "rmq_undo", fixed: { group }, fields: [["reason", "Reason, kept in the offset history", true]], switches: [DRY_MOVE, APPROVE, ["force", "Also when windows have consumed since", false]] }),
  redrive: (group, _, more) => ({ title: `Send dead letters of ${group} again`, dagId: "rmq_redrive_dlq", fixed: { group, ...more, dry_run: false }, fields: [["reason", "Reason, kept in the commit log", true]] }),
};
const RESET_TO = ["time", "offset", "min", "max"];
const WHOLE_NUMBERS = new Set(["max_messages", "offset"]);

// suggested: texts by the name of a field; others may be written too.
function ActionDialog({ form, suggested = {}, close, children }) {
  const [values, setValues] = useState({});
  const [switches, setSwitches] = useState(Object.fromEntries((form.switches ?? []).map(([name, , initial]) => [name, initial])));
  const [state, setState] = useState({ busy: false, error: null, run: null });
  const missing = form.fields.some(([name, , needed]) => needed && !values[name]?.trim());
  const submit = async () => {
    const given = Object.entries(values).filter(([, text]) => text.trim() !== "");
    const conf = { ...form.fixed, ...switches, ...Object.fromEntries(given.map(([name, text]) => [name, WHOLE_NUMBERS.has(name) ? Number(text) : text.trim()])) };
    setState({ busy: true, error: null, run: null });
    try {
      const run = await trigger(form.dagId, conf);
      setState({ busy: false, error: null, run: { dagId: form.dagId, runId: run.dag_run_id }, paused: await isPaused(form.dagId) });
    } catch (error) {
      setState({ busy: false, error, run: null });
    }
  };
  return h(Dialog.Root, { open: true, onOpenChange: (event) => event.open || close() },
    h(Dialog.Backdrop), h(Dialog.Positioner, null, h(Dialog.Content, { p: 4 },
      h(Dialog.Title, null, form.title), h(Text, { fontSize: "sm", color: "fg.muted" }, `Triggers the DAG ${form.dagId}.`),
      children,
      form.fields.map(([name, title, needed]) => h(Box, { key: name, my: 2 },
        h("label", { htmlFor: `rmq-${name}`, style: { display: "block", fontSize: "small" } }, title + (needed ? " *" : "")),
        h(Input, { id: `rmq-${name}`, size: "sm", required: needed === true, list: suggested[name] && `rmq-${name}-known`, value: values[name] ?? "", onChange: (event) => setValues((old) => ({ ...old, [name]: event.target.value })) }),
        suggested[name] && h("datalist", { id: `rmq-${name}-known` }, suggested[name].map((text) => h("option", { key: text, value: text }))))),
      form.switches?.map(([name, title]) => h("label", { key: name, style: { display: "block" } },
        h("input", { type: "checkbox", checked: switches[name], onChange: (event) => setSwitches((old) => ({ ...old, [name]: event.target.checked })) }), ` ${title}`)),
      h(Failure, { error: state.error }),
      state.run && h(Text, { my: 2 }, "Triggered: ", h(RouterLink, { to: runPath(state.run) }, state.run.runId)),
      state.paused && h(Text, { my: 2, color: "orange.fg" }, "The DAG is paused: the run waits until you switch the DAG on."),
      h(Flex, { gap: 2, mt: 3, justify: "flex-end" },
        h(Button, { size: "sm", variant: "ghost", onClick: close }, "Close"),
        !state.run && h(Button, { size: "sm", disabled: missing || state.busy, onClick: submit }, "Trigger")))));
}

function Actions({ group, names }) {
  const [name, setName] = useState(null);
  const { data } = useAnswer(name === null ? null : "api/permissions", { group });
  const topics = useAnswer(name === null ? null : "api/topics", { group }).data?.topics;
  return h(Flex, { gap: 1 },
    names.map((one) => h(Button, { key: one, size: "xs", variant: "outline", "aria-label": `${label(one)} ${group}`, onClick: () => setName(one) }, label(one))),
    name !== null && data && h(ActionDialog, { form: FORMS[name](group, data.dag_id), suggested: { topic: topics, to: RESET_TO }, close: () => setName(null) },
      data.may_edit ? null : h(Text, { color: "red.fg" }, "Airflow does not let you trigger this group's DAG.")));
}

// A group that only a broker knows has no DAG here.
const actionsOf = (group, heldBy) => (isReplay(group) ? ["reprocess"] : heldBy === "broker" ? [] : ["consume", "replay", "reset"]);

// --- pages -------------------------------------------------------------------------------------------------------

function Groups() {
  const [groups, setGroups] = useState([]);
  const onRows = useCallback((rows) => setGroups(rows.map((row) => row.group_name)), []);
  const lagAnswer = useAnswer(groups.length ? "api/lag" : null, { group: groups });
  const lag = lagAnswer.data?.lag ?? {};
  const audit = useAnswer("api/audit").data;
  const blocked = useAnswer("api/lists/blocked", { limit: 500 }).data;
  const bad = useMemo(() => new Set([...(audit?.rows ?? []), ...(blocked?.rows ?? [])].map((row) => row.group_name)), [audit, blocked]);
  return h(Box, { "aria-busy": lagAnswer.loading },
    audit && (audit.total
      ? h(Text, { color: "red.fg" }, `The audit has ${audit.total.toLocaleString("en")} findings. `, h(To, { go: { page: "audit" } }, "Show them"))
      : h(Text, { color: "fg.muted" }, `The audit of ${timeText(audit.checked_at)} has no finding.`)),
    h(List, {
      name: "groups", onRows, warn: (row) => bad.has(row.group_name), empty: "No group has consumed yet.",
      extra: {
        "Lag over time": ({ group_name: name }) => lag[name]?.length > 0 && h(Box, { color: "fg.info" }, h(Sparkline, { pairs: lag[name], title: lagText(lag[name]) })),
        " ": ({ group_name: name, held_by: heldBy }) => h(Actions, { group: name, names: actionsOf(name, heldBy) }),
      },
    }),
    blocked?.total > 0 && h(List, { name: "blocked", warn: () => true }));
}

function Group({ group }) {
  const lag = useAnswer("api/lag", { group: [group] });
  const filters = { group };
  return h(Box, null,
    h(Flex, { justify: "space-between", mb: 2, wrap: "wrap", gap: 2 }, h(Heading, { size: "md", overflowWrap: "anywhere" }, group), h(Actions, { group, names: isReplay(group) ? actionsOf(group) : [...actionsOf(group), "undo"] })),
    h(To, { go: { page: "dead", group }, fontSize: "sm", mb: 2, display: "inline-block" }, "Dead letters of this group"),
    h(Failure, { error: lag.error }), h(Waiting, { when: lag.loading }), lag.data && h(Chart, { pairs: lag.data.lag[group] }),
    h(List, { name: "queues", filters, empty: "The group has no queue here." }),
    h(List, { name: "blocked", filters, warn: () => true, empty: "No queue waits at a failed message." }),
    h(List, { name: "windows", filters, empty: "No window yet.", extra: {
      " ": (row) => h(To, { go: { page: "window", group, request: row.request_id } }, "Details"),
    } }),
    h(List, { name: "offsets", filters, empty: "No offset was moved yet." }),
    h(List, { name: "owners", filters, empty: "No run has claimed a queue yet." }));
}

const quoted = (text) => `'${text.replaceAll("'", "''")}'`;

// What one request consumed: its windows, what became of the messages that failed in them, and the query that shows it.
function Window({ group, request }) {
  const filters = { group, request };
  return h(Box, null,
    h(Heading, { size: "md", mb: 2, overflowWrap: "anywhere" }, h(To, { go: { page: "group", group } }, group), ": ", h(RunLink, { id: request })),
    h(List, { name: "windows", filters, empty: "No window was committed." }),
    h(List, { name: "retry-windows", filters, empty: "No window has read a retry of it yet." }),
    h(List, { name: "dead-letters", filters, empty: "No dead letters." }),
    h(Heading, { size: "sm", mb: 1 }, "In SQL"),
    h(Box, { as: "pre", p: 2, borderWidth: 1, overflow: "auto", fontSize: "xs", whiteSpace: "pre-wrap", overflowWrap: "anywhere" },
      `SELECT * FROM windows\nWHERE group_name = ${quoted(group)} AND request_id = ${quoted(request)}\nORDER BY committed_at`));
}

// Text fields of a search; apply(values) when it is sent.
function Search({ fields, start = {}, apply }) {
  const [values, setValues] = useState(start);
  return h("form", { onSubmit: (event) => { event.preventDefault(); apply(Object.fromEntries(Object.entries(values).filter(([, text]) => text))); } },
    h(Flex, { gap: 2, mb: 3, wrap: "wrap", align: "end" },
      Object.entries(fields).map(([name, title]) => h(Box, { key: name },
        h("label", { htmlFor: `rmq-search-${name}`, style: { display: "block", fontSize: "small" } }, title),
        h(Input, { id: `rmq-search-${name}`, size: "xs", w: "22ch", placeholder: /\btime\b/.test(title) ? "2026-01-31T12:00:00Z" : undefined, value: values[name] ?? "", onChange: (event) => setValues((old) => ({ ...old, [name]: event.target.value })) }))),
      h(Button, { size: "xs", type: "submit" }, "Search")));
}

const TIMES = { since: "From time", until: "Until time" };

const MESSAGES = 50;

function Topic({ topic }) {
  const [query, setQuery] = useState({});
  const { data, error, loading } = useAnswer("api/messages", { topic, limit: MESSAGES, ...query });
  return h(Box, null, h(Heading, { size: "md", mb: 2, overflowWrap: "anywhere" }, topic),
    h(List, { name: "topic-groups", filters: { topic }, empty: "No group has an offset in this topic." }),
    h(List, { name: "topic-queues", filters: { topic } }),
    h(Heading, { size: "sm", mb: 2 }, `Messages, oldest first, at most ${MESSAGES}`),
    h(Search, { fields: { key: "Key or unique key", queue: "Queue, such as broker-a:0", offset: "From offset", ...TIMES }, apply: setQuery }),
    h(Failure, { error }), h(Waiting, { when: loading }), data && h(Messages, { rows: data.rows }));
}

const MESSAGE_COLUMNS = ["store_timestamp", "broker_name", "queue_id", "queue_offset", "keys", "tags", "reconsume_times", "unique_key", "offset_msg_id"];

const Messages = ({ rows }) => rows.length === 0 ? h(Text, { color: "fg.muted" }, "No message.") : h(Box, { overflowX: "auto" }, h(Table.Root, { size: "sm", striped: true, "aria-label": "Messages" },
  h(Table.Header, null, h(Table.Row, null, MESSAGE_COLUMNS.map((column) => h(Table.ColumnHeader, { key: column, whiteSpace: "nowrap", textAlign: isAmount(column, rows[0][column]) ? "end" : "start" }, label(column))))),
  h(Table.Body, null, rows.map((row, at) => h(Table.Row, { key: at }, MESSAGE_COLUMNS.map((column) => h(Table.Cell, { key: column, ...cellStyle(column, row[column]) }, h(Cell, { column, row }))))))));

function Body({ row }) {
  const forms = ["body_json", "body_text", "body_hex"].filter((name) => row[name] !== null && row[name] !== undefined);
  const [form, setForm] = useState(forms[0]);
  if (row.masked) return h(Text, { color: "fg.muted" }, `Body of ${row.body_bytes ?? 0} bytes; to see it you need the permission to trigger runs.`);
  return h(Box, null,
    h(Flex, { gap: 1, my: 1 }, forms.map((name) => h(Button, { key: name, size: "xs", variant: form === name ? "solid" : "outline", "aria-pressed": form === name, onClick: () => setForm(name) }, name.slice(5).toUpperCase()))),
    h(Box, { as: "pre", p: 2, borderWidth: 1, overflow: "auto", maxH: "400px", fontSize: "xs", whiteSpace: "pre-wrap", overflowWrap: "anywhere" }, row[form] ?? ""));
}

const HIDDEN = new Set(["masked", "body_bytes", "body_text", "body_json", "body_hex", "body_base64", "topic", "broker_name", "queue_id", "queue_offset", "properties"]);

// Names and values, in as many columns as fit.
const Facts = ({ pairs }) => h(Box, { display: "grid", gridTemplateColumns: "repeat(auto-fill, minmax(min(100%, 22rem), 1fr))", columnGap: 6, rowGap: 1, fontSize: "sm", my: 2 },
  pairs.map(([name, text]) => h(Flex, { key: name, gap: 2 }, h(Text, { color: "fg.muted", flexShrink: 0 }, name), h(Box, { as: "code", overflowWrap: "anywhere", minW: 0 }, text))));

const factsOf = (row) => Object.entries(row).filter(([name, value]) => !HIDDEN.has(name) && value !== null && value !== "");

function Message({ id }) {
  const message = useAnswer("api/message", { id });
  const track = useAnswer("api/track", { id });
  return h(Box, null, h(Failure, { error: message.error }),
    h(Waiting, { when: message.loading || track.loading }),
    h(Heading, { size: "md", mb: 1 }, "Track"), h(Failure, { error: track.error }),
    track.data?.tracks.length === 0 && h(Text, { color: "fg.muted", fontSize: "sm" }, "No group has an offset in this message's topic."),
    (track.data?.tracks ?? []).map((one) => h(Box, { key: one.group, mb: 2 },
      h(Flex, { gap: 2, align: "center" }, h(To, { go: { page: "group", group: one.group }, fontSize: "sm" }, one.group), h(Badge, null, one.type)),
      one.hops.map((hop, at) => h(Text, { key: at, fontSize: "sm", pl: 4, overflowWrap: "anywhere" },
        `${hop.attempt}. ${hop.topic} ${placeOf(hop)}: ${hop.outcome}`,
        hop.committed_at ? ` at ${timeText(hop.committed_at)}` : hop.due_at ? `, due ${timeText(hop.due_at)}` : "",
        hop.error_type ? ` (${hop.error_type}: ${hop.error_text})` : "")))),
    h(Heading, { size: "md", mt: 4, mb: 1 }, "Copies of the message"),
    (message.data?.rows ?? []).map((row, at) => h(Box, { key: at, borderWidth: 1, borderRadius: "md", p: 3, mb: 3 },
      h(Heading, { size: "sm", overflowWrap: "anywhere" }, `${row.topic} ${placeOf(row)}`),
      h(Facts, { pairs: factsOf(row).map(([name, value]) => [label(name), valueText(name, value)]) }),
      h(Properties, { properties: row.properties }), h(Body, { row }))));
}

function Properties({ properties }) {
  const pairs = Object.entries(properties ?? {});
  return pairs.length === 0 ? null : h(Box, null, h(Text, { fontSize: "sm", fontWeight: "bold" }, "Properties"), h(Facts, { pairs }));
}

function Topics() {
  const [filters, setFilters] = useState({});
  const [, setSearch] = ReactRouterDOM.useSearchParams();
  return h(Box, null,
    h(Search, { fields: { id: "Message id or unique key" }, apply: ({ id }) => id && setSearch({ page: "message", id }) }),
    h(Search, { fields: { name: "Name contains" }, apply: setFilters }), h(List, { name: "topics", filters }));
}

function Delayed() {
  const [filters, setFilters] = useState({});
  return h(Box, null, h(List, { name: "delay-levels", empty: "No message waits for its time." }),
    h(Search, { fields: { delay_level: "Level", topic: "Topic", since: "Due from time", until: "Due until time" }, apply: setFilters }),
    h(List, { name: "delayed", filters, empty: "No delayed message." }));
}

function DeadLetters({ group }) {
  const [filters, setFilters] = useState({});
  const [choice, setChoice] = useState(null);
  if (!group) return h(List, { name: "dead-letter-causes", extra: { " ": (row) => h(To, { go: { page: "dead", group: row.group_name } }, "Show messages") }, empty: "No dead letters." });
  return h(Box, null,
    h(Flex, { justify: "space-between", wrap: "wrap", gap: 2, mb: 2 }, h(Heading, { size: "md", overflowWrap: "anywhere" }, `Dead letters of ${group}`),
      h(Button, { size: "xs", variant: "outline", onClick: () => setChoice({ all: true }) }, "Send all again")),
    h(List, { name: "dead-letter-causes", filters: { group } }),
    h(Search, { fields: { cause: "Cause", error_type: "Error class", text: "Error contains", key: "Key", ...TIMES }, apply: setFilters }),
    h(List, { name: "dead-letters", filters: { group, ...filters }, empty: "No dead letters.", extra: {
      " ": (row) => row.redriven_at === null && h(Button, { size: "xs", variant: "outline", "aria-label": `Send ${placeOf(row)} again`, onClick: () => setChoice({ letters: [placeOf(row)] }) }, "Send again"),
    } }),
    choice && h(Redrive, { group, choice, close: () => setChoice(null) }));
}

// First the dry run, then the form that sends.
function Redrive({ group, choice, close }) {
  const { data, error, loading } = useAnswer("api/redrive", { group, ...choice });
  return h(ActionDialog, { form: FORMS.redrive(group, null, choice), close },
    h(Waiting, { when: loading }), h(Failure, { error }),
    data && h(Text, { my: 2 }, `Dry run: ${data.letters === 1 ? "1 dead letter" : `${data.letters.toLocaleString("en")} dead letters`} would be sent to ${[...new Set(data.shards.map((one) => one.topic))].join(", ") || "no topic"}.`));
}

function Replays({ group }) {
  const difference = useAnswer(group ? "api/diff" : null, { group });
  return h(Box, null,
    h(List, { name: "replays", filters: group ? { group } : {}, empty: "No replay yet.", extra: {
      " ": (row) => h(Flex, { gap: 2 }, h(Actions, { group: row.group_name, names: ["reprocess"] }), row.attempts > 1 && h(To, { go: { page: "replays", group: row.group_name } }, "Compare")),
    } }),
    h(Failure, { error: difference.error }),
    (difference.data?.shards ?? []).map((shard) => h(Box, { key: shard.shard, my: 3 },
      h(Heading, { size: "sm" }, `${shard.shard}: attempt ${shard.attempts[0].attempt} and attempt ${shard.attempts[1].attempt}`),
      shard.table.map((pair, at) => h(Text, { key: at, fontSize: "sm" }, `${pair.first} → ${pair.second}: ${pair.messages.toLocaleString("en")} messages, ${pair.differing.toLocaleString("en")} differ`)),
      shard.rows.map((row, at) => h(Text, { key: at, fontSize: "xs" }, `${row.topic} ${placeOf(row)}: ${row.first.outcome} → ${row.second.outcome}`)))));
}

const FINDING = ["problem", "shard", "group_name", "topic", "broker_name", "queue_id", "begin_offset", "end_offset"];

const NO_RECORDS = { requests: "No operator has changed anything yet.", maintenance: "No maintenance has run yet.", removed: "Retention has removed nothing." };

function Audit() {
  const [again, setAgain] = useState("");
  const { data, error, loading, again: readAgain } = useAnswer("api/audit", { again });
  return h(Box, null,
    h(Flex, { gap: 3, align: "center", mb: 2 }, h(Heading, { size: "sm" }, "Audit"), loading ? h(Waiting) : h(Button, { size: "xs", variant: "outline", onClick: () => (again ? readAgain() : setAgain("true")) }, "Check again")),
    h(Failure, { error }),
    data && (data.total === 0
      ? h(Text, { color: "green.fg" }, `No finding at ${timeText(data.checked_at)}: every offset has exactly one outcome.`)
      : h(Box, null, h(Text, { color: "red.fg" }, `${data.total} findings at ${timeText(data.checked_at)}; rmq audit says what to do.`),
        data.rows.map((row, at) => h(Text, { key: at, fontSize: "sm" }, FINDING.filter((name) => row[name] !== null).map((name) => `${label(name)} ${row[name]}`).join(", "))))),
    Object.entries(NO_RECORDS).map(([name, empty]) => h(List, { key: name, name, empty })));
}

// --- the shell ---------------------------------------------------------------------------------------------------

const PAGES = {
  groups: ["Groups", Groups], topics: ["Topics and messages", Topics], delayed: ["Delayed", Delayed], dead: ["Dead letters", DeadLetters],
  replays: ["Replays", Replays], audit: ["Audit and maintenance", Audit],
};
const DETAILS = { group: Group, window: Window, topic: Topic, message: Message };

function RocketMQ() {
  const [search] = ReactRouterDOM.useSearchParams();
  const { page = "groups", ...more } = Object.fromEntries(search);
  const Page = DETAILS[page] ?? (PAGES[page] ?? PAGES.groups)[1];
  const place = { group: "groups", window: "groups", topic: "topics", message: "topics" }[page] ?? page;
  return h(Box, { p: 4, overflow: "auto", h: "100%" },
    h(Flex, { as: "nav", "aria-label": "RocketMQ", columnGap: 4, rowGap: 1, mb: 4, wrap: "wrap", align: "baseline", borderBottomWidth: 1 },
      h(Heading, { size: "lg" }, "RocketMQ"),
      Object.entries(PAGES).map(([name, [title]]) => h(To, {
        key: name, go: { page: name }, py: 1, borderBottomWidth: 2, borderRadius: 0, borderColor: name === place ? "fg.info" : "transparent",
        color: name === place ? "fg" : "fg.muted", "aria-current": name === place ? "page" : undefined,
      }, title))),
    h(Page, { ...more, key: JSON.stringify([page, more]) }));
}

// The host looks for a global of the app's name, or this one.
globalThis.AirflowPlugin = RocketMQ;
