// The page at /: the state of a model, once a second, and a chat with it. No library, nothing from other hosts.

const TOOL = {
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather in a city.",
    parameters: {
      type: "object",
      properties: { city: { type: "string" }, unit: { enum: ["celsius", "fahrenheit"] } },
      required: ["city", "unit"],
      additionalProperties: false,
    },
  },
};
const SCHEMA = {
  type: "object",
  properties: { answer: { type: "string" }, certain: { type: "boolean" } },
  required: ["answer", "certain"],
  additionalProperties: false,
};
const EXAMPLES = {
  tool: { label: "Tool, as in the field tools", value: TOOL },
  schema: { label: "JSON schema of the answer", value: SCHEMA },
};
const PERIOD = 1000; // milliseconds between two states
const LIST_PERIOD = 30; // states between two lists of models

const at = (id) => document.getElementById(id);
let key = "";
let conversation = []; // messages; a new conversation is a new list
let running = null; // AbortController of the answer that is coming
let states = 0; // since the last list of models

function headers() {
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

// Models, load and settings

async function read(path) {
  const used = key;
  const response = await fetch(path, { headers: headers() });
  if (used !== key) throw new Error("another key is in use");
  at("access").hidden = response.status !== 401;
  if (response.status === 401) {
    set(at("model"), key ? "this key is not accepted" : "an API key is needed");
    at("main").hidden = true;
    return null;
  }
  if (!response.ok) throw new Error((await response.json()).error?.message ?? `status ${response.status}`);
  return response.json();
}

async function refresh() {
  if (states++ % LIST_PERIOD === 0 || !at("models").value) {
    const list = await read("v1/models");
    if (!list) {
      states = 0;
      return;
    }
    choices([...new Set(list.data.map((model) => model.id))]);
  }
  const model = at("models").value;
  if (!model) {
    set(at("model"), "there is no model");
    at("main").hidden = true;
    return;
  }
  const state = await read(`page/state?model=${encodeURIComponent(model)}`);
  if (state && model === at("models").value) show(model, state);
}

function choices(names) {
  const list = at("models");
  at("choice").hidden = names.length < 2;
  const shown = [...list.options].map((option) => option.value);
  if (names.join("\n") === shown.join("\n")) return; // a list that is open stays as it is
  const before = list.value;
  list.replaceChildren(...names.map((name) => new Option(name)));
  if (names.includes(before)) list.value = before;
  else startOver();
}

function show(model, state) {
  at("main").hidden = false;
  set(at("model"), `${model} · ${state.ready ? "ready" : "not ready"} · ${state.version}`);
  at("about").hidden = state.gateway;
  pairs(at("settings"), state.settings);
  at("chat").hidden = !state.generates;
  gauges(state);
  table(state.gateway ? state.replicas : []);
}

function pairs(list, values) {
  const texts = Object.entries(values).flat();
  if (texts.join("\n") === list.dataset.shown) return;
  list.dataset.shown = texts.join("\n");
  const rows = Object.entries(values).map(([name, value]) => {
    const row = document.createElement("div");
    row.append(element("dt", name.replaceAll("_", " ")), element("dd", value));
    return row;
  });
  list.replaceChildren(...rows);
}

function gauges(state) {
  const known = state.replicas.filter((replica) => replica.kv_pool !== null);
  const sum = (field) => known.reduce((total, replica) => total + replica[field], 0);
  at("held-card").hidden = !state.gateway;
  set(at("held"), state.held);
  set(at("kv_pool"), known.length ? percent(sum("kv_pool") / known.length) : "–");
  set(at("running"), known.length ? sum("running") : "–");
  set(at("waiting"), known.length ? sum("waiting") : "–");
  set(at("rate"), state.tokens_per_second ?? "–");
  if (state.prefix_hits !== null) set(at("hits"), percent(state.prefix_hits)); // else the last one stays
}

function table(replicas) {
  at("replicas").hidden = replicas.length === 0;
  const texts = replicas.map((replica, index) => {
    const load = replica.kv_pool === null ? ["–", "–", "–"] : [percent(replica.kv_pool), replica.running, replica.waiting];
    return [index + 1, replica.ready ? "ready" : "not ready", ...load];
  });
  const body = at("rows");
  while (body.rows.length > texts.length) body.deleteRow(-1);
  texts.forEach((cells, index) => {
    const row = body.rows[index] ?? body.insertRow();
    cells.forEach((text, place) => {
      if (row.cells.length <= place) row.append(document.createElement(place ? "td" : "th"));
      if (!place) row.cells[0].scope = "row";
      set(row.cells[place], text);
    });
  });
}

function percent(share) {
  return `${Math.round(100 * share)} %`;
}

// What did not change is left alone: a screen reader would read it again, and a selection would be lost.
function set(where, text) {
  if (where.textContent !== String(text)) where.textContent = text;
}

async function watch() {
  for (;;) {
    try {
      if (!document.hidden) await refresh();
    } catch (error) {
      set(at("model"), error.message);
      states = 0;
    }
    await new Promise((resolve) => setTimeout(resolve, PERIOD));
  }
}

// Chat

function element(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

function paragraph(who, text, kind = "") {
  const made = document.createElement("p");
  const body = element("span", text);
  made.append(element("b", who), body);
  made.className = kind;
  at("messages").append(made);
  at("messages").scrollTop = at("messages").scrollHeight;
  return body;
}

function request(messages) {
  const extra = at("extra").value;
  const body = {
    model: at("models").value,
    messages,
    stream: true,
    stream_options: { include_usage: true },
    max_completion_tokens: Number(at("tokens").value),
  };
  if (extra === "text") return body;
  const given = parsed(at("json").value);
  if (extra === "tool") return { ...body, tools: [given], tool_choice: "required", parallel_tool_calls: false };
  const schema = { name: "answer", schema: given, strict: true };
  return { ...body, response_format: { type: "json_schema", json_schema: schema } };
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${at("given-label").textContent}: ${error.message}`);
  }
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}

// `messages` are those of the conversation in which the question was asked; it may have been left since.
async function answer(messages, question) {
  const begin = performance.now();
  const body = paragraph("Model", "");
  body.parentElement.setAttribute("aria-busy", "true");
  let first = null;
  let usage = null;
  let said = ""; // for the next turn: without the thinking
  let failure = null;
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: headers(),
      body: JSON.stringify(request(messages)),
      signal: running.signal,
    });
    if (!response.ok) throw new Error((await response.json()).error?.message ?? `status ${response.status}`);
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      usage = event.usage ?? usage;
      const delta = event.choices?.[0]?.delta ?? {};
      const call = delta.tool_calls?.[0]?.function ?? {};
      // A call of the example tool has no result: the conversation goes on as if it had been said.
      const text = (delta.content ?? "") + (call.name ? `${call.name} ` : "") + (call.arguments ?? "");
      const shown = (delta.reasoning_content ?? "") + text;
      if (shown) first ??= performance.now();
      said += text;
      body.textContent += shown;
      at("messages").scrollTop = at("messages").scrollHeight;
    }
  } catch (error) {
    failure = error;
  }
  body.parentElement.removeAttribute("aria-busy");
  if (messages !== conversation) return;
  if (said) messages.push({ role: "assistant", content: said });
  else messages.pop();
  if (failure?.name === "AbortError") body.textContent += " (stopped)";
  else if (failure) {
    if (!said) body.parentElement.remove();
    paragraph("Error", failure.message, "error");
    if (!said) at("text").value ||= question; // to ask again
  }
  figures(begin, first, performance.now(), usage);
}

function figures(begin, first, end, usage) {
  if (first === null) return;
  const waited = `first token after ${Math.round(first - begin)} ms`;
  if (!usage) {
    at("figures").textContent = waited;
    return;
  }
  const count = usage.completion_tokens;
  const rate = count > 1 ? `, ${Math.round((1000 * (count - 1)) / (end - first))} tokens/s` : "";
  at("figures").textContent = `${usage.prompt_tokens} tokens in, ${count} out, ${waited}${rate}`;
}

async function send(event) {
  event.preventDefault();
  const question = at("text").value.trim();
  if (!question || running) return;
  running = new AbortController();
  at("send").disabled = true;
  at("stop").disabled = false;
  at("text").value = "";
  conversation.push({ role: "user", content: question });
  paragraph("You", question);
  await answer(conversation, question);
  running = null;
  at("send").disabled = false;
  at("stop").disabled = true;
  at("text").focus();
}

function stop() {
  running?.abort();
}

function startOver() {
  stop();
  conversation = [];
  at("messages").replaceChildren();
  at("figures").textContent = "";
}

function choose() {
  const example = EXAMPLES[at("extra").value];
  at("given").hidden = !example;
  if (!example) return;
  at("given-label").textContent = example.label;
  at("json").value = JSON.stringify(example.value, null, 2);
}

at("ask").addEventListener("submit", send);
at("stop").addEventListener("click", stop);
at("extra").addEventListener("change", choose);
at("clear").addEventListener("click", startOver);
at("models").addEventListener("change", startOver);
at("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  at("ask").requestSubmit();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
});
at("access").addEventListener("submit", (event) => {
  event.preventDefault();
  key = at("key").value.trim();
  at("key").value = "";
  states = 0;
});
watch();
