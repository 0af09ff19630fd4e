// What both pages use: addresses, answers, the columns of each list, and how values look. No framework.

// The module's own address is known behind any proxy path, so nothing here begins with "/".
const HERE = new URL(".", import.meta.url);
const AIRFLOW = new URL("../", HERE);

export const address = (path, query = {}) => {
  const url = new URL(path, HERE);
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") url.searchParams.append(name, one);
    }
  }
  return url.href;
};

async function answerOf(response) {
  const text = await response.text();
  let document;
  try {
    document = JSON.parse(text);
  } catch {
    document = { message: text.slice(0, 500) };
  }
  if (!response.ok) {
    const detail = typeof document.detail === "string" ? document.detail : JSON.stringify(document.detail);
    throw new Error(document.message || detail || `HTTP ${response.status}`);
  }
  return document;
}

const PATIENCE_S = 150; // the server has ended every query by then

// The answer of a JSON route. Without one a page would wait until it is left.
export const read = async (path, query, signal) => {
  const limit = AbortSignal.timeout(PATIENCE_S * 1000);
  try {
    const either = signal ? AbortSignal.any([signal, limit]) : limit;
    return await answerOf(await fetch(address(path, query), { signal: either, headers: { Accept: "application/json" } }));
  } catch (error) {
    if (limit.aborted && !signal?.aborted) throw new Error(`The server has not answered for ${PATIENCE_S} s. Load the page again.`);
    throw error;
  }
};

// Airflow checks the permission to trigger the DAG and writes its audit log.
export const trigger = async (dagId, conf) =>
  answerOf(
    await fetch(new URL(`api/v2/dags/${encodeURIComponent(dagId)}/dagRuns`, AIRFLOW), {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ logical_date: null, conf }),
    }),
  );

// A run of a paused DAG waits. Where Airflow does not say, nothing is shown.
export const isPaused = async (dagId) => {
  const answer = await fetch(new URL(`api/v2/dags/${encodeURIComponent(dagId)}`, AIRFLOW), { headers: { Accept: "application/json" } });
  return answer.ok && (await answer.json()).is_paused === true;
};

// The run of a request, YYYY-MM-DD/<dag_id>/<run_id>; null for one of the command line.
export const runOf = (requestId) => {
  const match = /^\d{4}-\d\d-\d\d\/(rmq_[^/]+)\/(.+)$/s.exec(requestId ?? "");
  return match && { dagId: match[1], runId: match[2] };
};

// Of a run id that Airflow made, its kind and its second; others as they are.
export const runText = ({ runId }) => runId.replace(/^([a-z]+)__(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d).*$/s, "$1 $2 $3");

export const runPath = (run) => `/dags/${encodeURIComponent(run.dagId)}/runs/${encodeURIComponent(run.runId)}`;

const REPLAY = /^(.+)-replay-[0-9a-f]{10}$/;
export const isReplay = (group) => REPLAY.test(group);

// --- how values look ---------------------------------------------------------------------------------------------

const IS_TIME = /(_at|_timestamp|_due|claimed_until|held_until)$/;
export const isTime = (column) => IS_TIME.test(column);
export const isNumber = (value) => typeof value === "number";

export const timeText = (ms) => {
  if (ms === null || ms === undefined) return "";
  const date = new Date(ms);
  return Number.isNaN(date.getTime()) ? String(ms) : date.toISOString().replace("T", " ").replace(/\.\d+Z$/, " UTC");
};

const LABELS = {
  deliver_at: "Due", store_timestamp: "Stored", newest_store_timestamp: "Newest message", queue_id: "Queue", request_id: "Request",
  real_topic: "Topic", original_topic: "Topic", offset_msg_id: "Message id", from_offset: "From", to_offset: "To",
};

export const label = (column) => {
  const words = LABELS[column] ?? column.replace(/_(at|name|timestamp)$/, "").replaceAll("_", " ");
  return words[0].toUpperCase() + words.slice(1) + (isTime(column) ? " (UTC)" : "");
};

const NAMES_OF_NUMBERS = new Set(["queue_id", "delay_level", "attempt", "subscription_version", "request_part"]);

// Whether a value is an amount, which is aligned at its end; a queue's number is a name.
export const isAmount = (column, value) => isNumber(value) && !isTime(column) && !NAMES_OF_NUMBERS.has(column);

export const isJson = (value) => typeof value === "string" && /^[{[]/.test(value);

export const indented = (text) => {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // only looks like JSON, or was cut
  }
};

export const valueText = (column, value) => {
  if (value === null || value === undefined) return "";
  if (isTime(column) && isNumber(value)) return timeText(value).replace(" UTC", ""); // which the label says
  if (isNumber(value)) return NAMES_OF_NUMBERS.has(column) ? String(value) : value.toLocaleString("en");
  if (typeof value === "boolean") return value ? "yes" : "no";
  return typeof value === "object" ? JSON.stringify(value) : value;
};

export const OUTCOMES = {
  acked: "#2f9e44", filtered: "#868e96", retried: "#f08c00", dead: "#e03131",
  duplicate: "#1971c2", dropped: "#9c36b5", lost: "#c2255c", skipped: "#495057",
};

// The parts of a window by outcome, as shares of 1.
export const shares = (row) =>
  Object.keys(OUTCOMES).filter((name) => row[name] > 0).map((name) => ({ name, count: row[name], share: row[name] / row.messages }));

// What a chart of [time, lag] pairs shows, in words.
export const lagText = (pairs) => {
  const most = Math.max(...pairs.map(([, lag]) => lag));
  return `Lag over time: ${most === 0 ? "0" : `at most ${most.toLocaleString("en")}, now ${pairs.at(-1)[1].toLocaleString("en")}`}, from ${timeText(pairs[0][0])} to ${timeText(pairs.at(-1)[0])}`;
};

// The points of [time, value] pairs in a box, for <polyline points>.
export const points = (pairs, width, height) => {
  if (!pairs.length) return "";
  const [first, last] = [pairs[0][0], pairs[pairs.length - 1][0]];
  const most = Math.max(1, ...pairs.map(([, value]) => value));
  return pairs
    .map(([time, value]) => {
      const x = last === first ? width : ((time - first) / (last - first)) * width;
      return `${x.toFixed(1)},${(height - (value / most) * height).toFixed(1)}`;
    })
    .join(" ");
};

// --- the columns that a list shows; a file has all ---------------------------------------------------------------

export const COLUMNS = {
  groups: ["group_name", "lag", "readable_lag", "dead_letters", "queues", "updated_at", "held_by"],
  blocked: ["group_name", "topic", "broker_name", "queue_id", "begin_offset", "end_offset", "attempts", "last_tried_at", "error_type", "error_text"],
  queues: ["topic", "broker_name", "queue_id", "next_offset", "max_offset", "lag", "last_window_at", "last_request", "owner"],
  windows: ["committed_at", "shard", "messages", "outcomes", "actor", "reason", "request_id"],
  "retry-windows": ["committed_at", "shard", "retries", "request_id"],
  offsets: ["committed_at", "topic", "broker_name", "queue_id", "action", "from_offset", "to_offset", "actor", "reason", "request_id"],
  topics: ["topic", "type", "queues", "messages", "newest_store_timestamp"],
  "topic-queues": ["broker_name", "queue_id", "min_offset", "max_offset", "newest_store_timestamp", "shard"],
  "topic-groups": ["group_name", "lag", "readable_lag", "queues"],
  "delay-levels": ["delay_level", "real_topic", "messages", "due_now", "next_due", "last_due"],
  delayed: ["deliver_at", "delay_level", "real_topic", "keys", "reconsume_times", "unique_key", "store_timestamp"],
  "dead-letter-causes": ["group_name", "original_topic", "cause", "error_type", "messages", "redriven", "first_at", "last_at"],
  "dead-letters": ["store_timestamp", "original_topic", "cause", "attempt", "error_type", "error_text", "keys", "unique_key", "redriven_at"],
  replays: ["group_name", "attempt", "begun_at", "last_at", "windows", "messages", "outcomes", "actor", "reason", "request_id"],
  requests: ["committed_at", "action", "group_name", "actor", "actor_source", "reason", "request_id", "parameters"],
  maintenance: ["committed_at", "action", "shard", "actor", "reason", "request_id", "parameters"],
  removed: ["removed_at", "topic", "broker_name", "queue_id", "begin_offset", "end_offset", "actor", "reason"],
  owners: ["claimed_at", "held_until", "ended_by", "group_name", "topic", "broker_name", "queue_id", "client_id", "actor"],
};

export const placeOf = (row) => `${row.broker_name}:${row.queue_id}:${row.queue_offset}`;
