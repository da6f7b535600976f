// The page at /: what the server reports, once a second, and a chat. No library, nothing from other hosts.

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
const PERIOD = 1000; // milliseconds between two looks at the load

const at = (id) => document.getElementById(id);
let key = "";
let model = ""; // the name that requests give
let conversation = [];
let running = null; // AbortController of the answer that is coming
let seen = null; // model, time and counters of the last report

function headers() {
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

// Load and settings

async function refresh() {
  const response = await fetch("page/state", { headers: headers() });
  at("access").hidden = response.status !== 401;
  if (response.status === 401) {
    at("model").textContent = key ? "this key is not known" : "an API key is needed";
    return;
  }
  if (!response.ok) throw new Error(`the server answers ${response.status}`);
  show(await response.json());
}

function show(state) {
  at("choice").hidden = state.models.length < 2;
  choices(state.models.map((each) => each.names[0]));
  const chosen = state.models.find((each) => each.names[0] === at("models").value);
  at("about").hidden = state.gateway;
  pairs(at("settings"), state.settings ?? {});
  at("chat").hidden = !chosen || !(chosen.generates ?? true);
  if (!chosen) {
    at("model").textContent = `no model · ${state.version}`;
    return;
  }
  model = chosen.names[0];
  at("model").textContent = `${chosen.names.join(", ")} · ${chosen.ready ? "ready" : "not ready"} · ${state.version}`;
  gauges(chosen, state.gateway);
  table(state.gateway ? chosen.replicas : []);
}

function choices(names) {
  const list = at("models");
  const shown = [...list.options].map((option) => option.value);
  if (names.join("\n") === shown.join("\n")) return; // a list that is open stays as it is
  const before = list.value;
  list.replaceChildren(...names.map((name) => new Option(name)));
  if (names.includes(before)) list.value = before;
}

function pairs(list, values) {
  const rows = Object.entries(values).map(([name, value]) => {
    const row = document.createElement("div");
    row.append(element("dt", name.replaceAll("_", " ")), element("dd", value));
    return row;
  });
  list.replaceChildren(...rows);
}

function gauges(chosen, gateway) {
  const replicas = chosen.replicas;
  const sum = (field) => replicas.reduce((total, replica) => total + replica[field], 0);
  at("held-card").hidden = !gateway;
  at("held").textContent = chosen.held ?? 0;
  at("kv_pool").textContent = replicas.length ? percent(sum("kv_pool") / replicas.length) : "–";
  at("running").textContent = sum("running");
  at("waiting").textContent = sum("waiting");
  const counters = { generated: sum("generated_tokens"), prompt: sum("prompt_tokens"), hit: sum("prefix_hit_tokens") };
  const now = performance.now();
  const before = seen?.model === model ? seen : { now, ...counters };
  // A replica that is new or gone changes the sums by what it counted before.
  const since = (name) => Math.max(0, counters[name] - before[name]);
  at("rate").textContent = now > before.now ? Math.round((1000 * since("generated")) / (now - before.now)) : 0;
  // Of the prompts of the last second; between them the share stays.
  if (since("prompt") > 0) at("hits").textContent = percent(Math.min(1, since("hit") / since("prompt")));
  seen = { model, now, ...counters };
}

function table(replicas) {
  at("replicas").hidden = replicas.length === 0;
  const rows = replicas.map((replica, index) => {
    const row = document.createElement("tr");
    const state = replica.ready ? "ready" : "not ready";
    const cells = [state, percent(replica.kv_pool), replica.running, replica.waiting];
    const first = element("th", index + 1);
    first.scope = "row";
    row.append(first, ...cells.map((cell) => element("td", cell)));
    return row;
  });
  at("rows").replaceChildren(...rows);
}

function percent(share) {
  return `${Math.round(100 * share)} %`;
}

async function watch() {
  for (;;) {
    try {
      if (!document.hidden) await refresh();
    } catch (error) {
      at("model").textContent = `no connection: ${error.message}`;
      seen = null;
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

function request() {
  const extra = at("extra").value;
  const body = {
    model,
    messages: conversation,
    stream: true,
    stream_options: { include_usage: true },
    max_completion_tokens: Number(at("tokens").value),
  };
  if (extra === "text") return body;
  const given = parsed(at("json").value);
  if (extra === "tool") return { ...body, tools: [given], tool_choice: "required" };
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

async function answer() {
  const begin = performance.now();
  let first = null;
  let usage = null;
  const reply = { role: "assistant", content: "" };
  const body = paragraph("Model", "");
  body.parentElement.setAttribute("aria-busy", "true");
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: headers(),
      body: JSON.stringify(request()),
      signal: running.signal,
    });
    if (!response.ok) throw new Error((await response.json()).error?.message ?? `status ${response.status}`);
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      usage = event.usage ?? usage;
      const delta = event.choices?.[0]?.delta ?? {};
      const call = delta.tool_calls?.[0]?.function ?? {};
      const text = (delta.reasoning_content ?? "") + (delta.content ?? "");
      const shown = text + (call.name ? `${call.name} ` : "") + (call.arguments ?? "");
      if (shown) first ??= performance.now();
      reply.content += delta.content ?? "";
      body.textContent += shown;
      at("messages").scrollTop = at("messages").scrollHeight;
    }
    // A call of the example tool has no result: the conversation goes on as if it had been said.
    conversation.push({ ...reply, content: reply.content || body.textContent });
  } catch (error) {
    if (error.name === "AbortError") body.textContent += " (stopped)";
    else paragraph("Error", error.message, "error");
    if (reply.content) conversation.push(reply);
    else conversation.pop(); // the question can be asked again
  }
  body.parentElement.removeAttribute("aria-busy");
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
  const text = at("text").value.trim();
  if (!text || running) return;
  running = new AbortController();
  at("send").disabled = true;
  at("stop").disabled = false;
  at("text").value = "";
  conversation.push({ role: "user", content: text });
  paragraph("You", text);
  await answer();
  running = null;
  at("send").disabled = false;
  at("stop").disabled = true;
  at("text").focus();
}

function stop() {
  running?.abort();
}

function startAnew() {
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
at("clear").addEventListener("click", startAnew);
at("models").addEventListener("change", () => {
  startAnew();
  refresh().catch(() => {});
});
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
  refresh().catch(() => {});
});
watch();
