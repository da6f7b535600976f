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
let model = "";
let conversation = [];
let running = null; // AbortController of the answer that is coming
let seen = null; // time and counters of the last report

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
  model = state.models[0];
  at("model").textContent = `${state.models.join(", ")} · ${state.ready ? "ready" : "not ready"} · ${state.version}`;
  at("chat").hidden = !state.generates;
  at("settings").replaceChildren(
    ...Object.entries(state.settings).map(([name, value]) => {
      const row = document.createElement("div");
      row.append(element("dt", name.replaceAll("_", " ")), element("dd", value));
      return row;
    }),
  );
  const load = state.load;
  if (!load) return;
  at("kv_pool").textContent = `${Math.round(100 * load.kv_pool)} %`;
  at("running").textContent = load.running;
  at("waiting").textContent = load.waiting;
  const now = performance.now();
  const before = seen ?? { now, ...load };
  const tokens = load.generated_tokens - before.generated_tokens;
  const prompts = load.prompt_tokens - before.prompt_tokens;
  const hits = load.prefix_hit_tokens - before.prefix_hit_tokens;
  at("rate").textContent = now > before.now ? Math.round((1000 * tokens) / (now - before.now)) : 0;
  // Of the prompts of the last second; between them the share stays.
  if (prompts > 0) at("hits").textContent = `${Math.round((100 * hits) / prompts)} %`;
  seen = { now, ...load };
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
at("clear").addEventListener("click", () => {
  stop();
  conversation = [];
  at("messages").replaceChildren();
  at("figures").textContent = "";
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
