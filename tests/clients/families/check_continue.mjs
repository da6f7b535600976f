/** Continue: chat and autocomplete by its adapters, whole and streamed; tools, JSON, embeddings, rerank, errors. */

import assert from "node:assert/strict";

import { constructLlmApi } from "@continuedev/openai-adapters";
import OpenAI from "openai";

import {
  CITIES,
  COUNT,
  LONG_ANSWER,
  LONG_PROMPT,
  QUESTION,
  WRONG_KEY,
  asleep,
  assertAborted,
  assertCancelled,
  collect,
  raises,
  run,
} from "./checks.mjs";

const MESSAGES = [{ role: "user", content: QUESTION }];
// Both are the adapter for OpenAI, whose errors and retries are those of its client; the last uses the Messages API.
const OPENAI = ["openai", "vllm"];
const PROVIDERS = [...OPENAI, "anthropic"];
const SCHEMA = {
  type: "object",
  properties: { city: { enum: CITIES } },
  required: ["city"],
  additionalProperties: false,
};
const TOOL = {
  type: "function",
  function: { name: "temperature", description: "The temperature in a city.", parameters: SCHEMA },
};
// What the editor sends for a model that it does not know: its template, and the texts to stop at.
const HOLE = "<fim_prefix>function add(a, b) {\n  return <fim_suffix>;\n}\n<fim_middle>";
const STOPS = [
  ...["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<file_sep>", "<|endoftext|>", "</fim_middle>", "</code>"],
  ...["\n\n", "\r\n\r\n", "/src/", "#- coding: utf-8", "```"],
];

/** A signal that aborts nothing: each call has to have one. */
function never() {
  return new AbortController().signal;
}

/** The adapter of a provider, without retries by default. */
function adapter(place, provider = "openai", { key = place.key, retries = 0, requestOptions } = {}) {
  const api = constructLlmApi({ provider, apiBase: `${place.baseUrl}/`, apiKey: key, requestOptions });
  if (api.openai) {
    api.openai.maxRetries = retries;
  }
  return api;
}

/** What a chat gives. */
function given(place, options = {}) {
  return { model: place.model, messages: MESSAGES, temperature: 0, max_tokens: 24, ...options };
}

/** What an autocompletion gives. */
function hole(place, options = {}) {
  return { model: place.model, prompt: HOLE, temperature: 0, max_tokens: 24, stop: STOPS, ...options };
}

/** The whole answer to a chat. */
async function answer(api, body) {
  return (await api.chatCompletionNonStream(body, never())).choices[0].message;
}

/** Chats by each provider, with usage; autocompletion; the list of models. */
async function chat(place) {
  for (const provider of PROVIDERS) {
    const found = await adapter(place, provider).chatCompletionNonStream(given(place), never());
    assert(found.choices[0].message.content);
    assert.equal(found.usage.total_tokens, found.usage.prompt_tokens + found.usage.completion_tokens);
    assert(found.usage.completion_tokens > 0);
  }
  for (const provider of OPENAI) {
    const api = adapter(place, provider);
    assert((await api.list()).some((model) => model.id === place.model));
    const { choices } = await api.completionNonStream(hole(place), never());
    assert.equal(typeof choices[0].text, "string");
  }
}

/** The parts of a streamed chat, and the text that they make. */
async function streamedChat(api, body) {
  const chunks = await collect(api.chatCompletionStream({ ...body, stream: true }, never()));
  const texts = chunks.flatMap((chunk) => chunk.choices.map((choice) => choice.delta.content ?? ""));
  return { chunks, texts, text: texts.join("") };
}

/** The text of the whole answer, with usage in the end, by each provider; the autocompletion, and where it stops. */
async function stream(place) {
  for (const provider of PROVIDERS) {
    const api = adapter(place, provider);
    const { chunks, texts, text } = await streamedChat(api, given(place));
    const whole = await api.chatCompletionNonStream(given(place), never());
    assert.equal(text, whole.choices[0].message.content);
    assert(texts.length > 2);
    assert.equal(chunks.at(-1).usage.total_tokens, whole.usage.total_tokens);
  }
  const api = adapter(place, "vllm");
  const completed = async (options) => {
    const parts = await collect(api.completionStream(hole(place, { stream: true, ...options }), never()));
    return parts.map((part) => part.choices[0].text);
  };
  const texts = await completed({ stop: undefined });
  const whole = texts.join("");
  assert(texts.length > 2);
  assert.equal(whole, (await api.completionNonStream(hole(place, { stop: undefined }), never())).choices[0].text);
  const [ending] = whole.trim().split(/\s+/).slice(1);
  const stopped = (await completed({ stop: [...STOPS, ending] })).join("");
  assert(whole.startsWith(stopped));
  assert(!stopped.includes(ending));
}

/** Eight at once, and a stream among them, by each provider. */
async function asynchronous(place) {
  for (const provider of PROVIDERS) {
    const api = adapter(place, provider);
    const whole = async () => (await answer(api, given(place))).content;
    const streamed = async () => (await streamedChat(api, given(place))).text;
    const found = await Promise.all([...Array.from({ length: 8 }, whole), streamed()]);
    assert.deepEqual(new Set(found), new Set([found[0]]));
    assert(found[0]);
  }
}

/** A required call, streamed and, but for Anthropic's adapter, which drops it, whole; its result, an answer. */
async function tools(place) {
  for (const provider of PROVIDERS) {
    const api = adapter(place, provider);
    const asked = given(place, { tools: [TOOL], max_tokens: 96 });
    const required = { ...asked, tool_choice: "required", parallel_tool_calls: false };
    const { chunks } = await streamedChat(api, required);
    const deltas = chunks.flatMap((chunk) => chunk.choices.flatMap((choice) => choice.delta.tool_calls ?? []));
    const first = deltas.filter((delta) => (delta.index ?? 0) === 0);
    const text = first.map((delta) => delta.function.arguments ?? "").join("");
    assert(CITIES.includes(JSON.parse(text).city));
    const call = { id: first[0].id, type: "function", function: { name: "temperature", arguments: text } };
    const message = { role: "assistant", content: " ", tool_calls: [call] };
    const result = { role: "tool", tool_call_id: call.id, content: "27" };
    assert((await streamedChat(api, { ...asked, messages: [...MESSAGES, message, result], tool_choice: "none" })).text);
    if (OPENAI.includes(provider)) {
      assert.equal((await answer(api, required)).tool_calls[0].function.arguments, text);
    }
  }
}

/** By JSON schema, whole and streamed, and JSON mode. */
async function structuredOutput(place) {
  const api = adapter(place);
  const format = { type: "json_schema", json_schema: { name: "place", schema: SCHEMA, strict: true } };
  const asked = given(place, { max_tokens: 96, response_format: format });
  const { content } = await answer(api, asked);
  assert(CITIES.includes(JSON.parse(content).city));
  assert.equal((await streamedChat(api, asked)).text, content);
  const loose = { ...asked, response_format: { type: "json_object" }, max_tokens: 400 };
  const [choice] = (await api.chatCompletionNonStream(loose, never())).choices;
  if (choice.finish_reason === "stop") {
    assert.equal(typeof JSON.parse(choice.message.content), "object");
  }
}

/** One vector for each text. */
async function embeddings(place) {
  for (const provider of OPENAI) {
    const { data } = await adapter(place, provider).embed({ model: place.model, input: ["a", "b c"] });
    const [first, second] = data.map(({ embedding }) => embedding.length);
    assert(first > 1);
    assert.equal(second, first);
  }
}

/** A score for each snippet, in the field where the editor looks for them with vLLM. */
async function rerank(place) {
  const documents = ["Rome is warm.", "a b c"];
  const { results } = await adapter(place, "vllm").rerank({ model: place.model, query: QUESTION, documents });
  const scores = results.sort((a, b) => a.index - b.index).map((result) => result.relevance_score);
  assert.equal(scores.filter(Number.isFinite).length, 2);
}

/** Too long a prompt, an unknown model, a wrong key and a limit: classes of OpenAI's client. */
async function errors(place) {
  const ask = (options, api = adapter(place)) => api.chatCompletionNonStream(given(place, options), never());
  const long = { messages: [{ role: "user", content: LONG_PROMPT }] };
  assert.equal((await raises(OpenAI.BadRequestError, () => ask(long))).code, "context_length_exceeded");
  await raises(OpenAI.BadRequestError, () => streamedChat(adapter(place), given(place, long)));
  const prompt = LONG_PROMPT;
  await raises(OpenAI.BadRequestError, () => adapter(place).completionNonStream(hole(place, { prompt }), never()));
  await raises(OpenAI.NotFoundError, () => ask({ model: "no-such-model" }));
  await raises(OpenAI.AuthenticationError, () => ask({}, adapter(place, "vllm", { key: WRONG_KEY })));
  if (place.limitedKey) {
    const limited = adapter(place, "openai", { key: place.limitedKey });
    const refused = await raises(OpenAI.RateLimitError, async () => [await ask({}, limited), await ask({}, limited)]);
    assert(Number(refused.headers.get("retry-after")) >= 1);
  }
}

/** By the Messages API, and by the path for providers that fill holes themselves: the server's text is the message. */
async function errorsAsText(place) {
  const streamed = (options, access) => streamedChat(adapter(place, "anthropic", access), given(place, options));
  const messages = [{ role: "user", content: LONG_PROMPT }];
  const fim = { model: place.model, prompt: "a", suffix: "b", max_tokens: 8 };
  for (const [call, pattern] of [
    [() => streamed({ messages }), /tokens/],
    [() => streamed({ model: "no-such-model" }), /no-such-model/],
    [() => streamed({}, { key: WRONG_KEY }), /key/],
    [() => collect(adapter(place).fimStream(fim, never())), /There is no|no such path/],
  ]) {
    const { message } = await raises(Error, call);
    assert.match(message, pattern);
  }
}

/** 503 is an `InternalServerError`; with retries of OpenAI's client the answer comes. */
async function retries(place) {
  await asleep(place, async () => {
    const refused = await raises(OpenAI.InternalServerError, () => answer(adapter(place), given(place)));
    assert.equal(refused.status, 503);
    assert((await answer(adapter(place, "openai", { retries: 8 }), given(place))).content);
  });
}

/** Chats and autocompletions that are left or aborted, by each provider, and a whole chat with a signal. */
async function cancel(place) {
  const requestOptions = { extraBodyProperties: { ignore_eos: true } };
  for (const provider of PROVIDERS) {
    const endless = provider === "anthropic" ? {} : { requestOptions };
    const api = adapter(place, provider, endless);
    const long = given(place, { messages: [{ role: "user", content: COUNT }], max_tokens: LONG_ANSWER, stream: true });
    await endsStream(place, (signal) => api.chatCompletionStream(long, signal));
  }
  const api = adapter(place, "vllm", { requestOptions });
  const long = hole(place, { max_tokens: LONG_ANSWER, stop: undefined, stream: true });
  await endsStream(place, (signal) => api.completionStream(long, signal));
  const whole = given(place, { max_tokens: LONG_ANSWER });
  await assertAborted(place, Error, (signal) => api.chatCompletionNonStream(whole, signal));
}

/** A stream ends on the server when it is left, and when its signal aborts it. */
async function endsStream(place, begin) {
  const left = begin(never());
  await left.next();
  await assertCancelled(place, () => left.return());
  const controller = new AbortController();
  const aborted = begin(controller.signal);
  await aborted.next();
  await assertCancelled(place, () => controller.abort());
}

await run({
  chat,
  stream,
  asynchronous,
  tools,
  structured_output: structuredOutput,
  embeddings: [embeddings, rerank],
  errors: [errors, errorsAsText],
  retries,
  cancel,
});
