/**
 * Runs the checks of a client for Node: `node check_CLIENT.mjs PLACE`, where PLACE is a `Place` of `checks.py` as JSON.
 *
 * It reports as `checks.py` does, with the same names and values.
 */

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import { inspect } from "node:util";

export const FEATURES = [
  "chat",
  "stream",
  "asynchronous",
  "tools",
  "structured_output",
  "embeddings",
  "errors",
  "retries",
  "cancel",
];

// The model is small and answers freely: what tests rely on is bounded by types.
export const CITIES = ["Paris", "Rome", "Oslo"];
export const QUESTION = "What is the temperature in Rome?";
export const DEGREES = { Paris: 21, Rome: 27, Oslo: 9 };
// With it, no answer ends before the test has ended it.
export const COUNT = "Count from one to a million, in words.";
export const LONG_ANSWER = 3000;
// More than the model's context of 4,096 tokens.
export const LONG_PROMPT = "word ".repeat(5000);
export const WRONG_KEY = "not-a-key";

/** Call the checks of each feature and report. A text says why the client does not have the feature. */
export async function run(checks) {
  assert.deepEqual(Object.keys(checks).sort(), [...FEATURES].sort());
  const place = placeOf(JSON.parse(process.argv[2]));
  for (const [feature, check] of Object.entries(checks)) {
    if (typeof check !== "string") {
      console.log(JSON.stringify({ feature, error: await errorOf([check].flat(), place) }));
    }
  }
}

/** A server, or a gateway with servers behind it. `baseUrl` is the address as clients of OpenAI want it. */
function placeOf({ limited_key: limitedKey, ...rest }) {
  return { ...rest, limitedKey, baseUrl: `${rest.url}/v1` };
}

async function errorOf(checks, place) {
  try {
    for (const check of checks) {
      await check(place);
    }
  } catch (error) {
    // A client may throw anything; the other features are tried nevertheless.
    return inspect(error) || "an error without a text";
  }
  return "";
}

/** The error of a call, which has to be of a class. */
export async function raises(kind, call) {
  let found;
  try {
    found = await call();
  } catch (error) {
    if (error instanceof kind) {
      return error;
    }
    throw error;
  }
  assert.fail(`no ${kind.name} was thrown: ${inspect(found).slice(0, 500)}`);
}

/** The items of an asynchronous iterable. */
export async function collect(items) {
  const found = [];
  for await (const item of items) {
    found.push(item);
  }
  return found;
}

/** Sequences that run or wait on the servers of a place. */
export async function load(place) {
  let total = 0;
  for (const admin of place.admin) {
    const response = await fetch(`${admin}/v1/octavo/load`, { signal: AbortSignal.timeout(30_000) });
    const report = await response.json();
    total += report.running + report.waiting;
  }
  return total;
}

/** Something runs; `cancel` ends it long before the answer is complete. */
export async function assertCancelled(place, cancel) {
  await assertRunning(place);
  await cancel();
  await assertIdle(place);
}

/** A call with a signal runs; the signal ends it, and the call throws an error of a class, which is returned. */
export async function assertAborted(place, kind, call) {
  const controller = new AbortController();
  const thrown = raises(kind, () => call(controller.signal));
  const [error] = await Promise.all([thrown, assertCancelled(place, () => controller.abort())]);
  return error;
}

/** Something runs, or starts within a moment. */
export async function assertRunning(place) {
  await until(async () => (await load(place)) > 0, "nothing runs: is the answer complete already?");
}

/** Nothing runs after a moment. */
export async function assertIdle(place) {
  await until(async () => (await load(place)) === 0, "it still runs, 5 s after the client has cancelled it");
}

async function until(condition, message) {
  const begin = performance.now();
  while (!(await condition())) {
    assert(performance.now() < begin + 5000, message);
    await sleep(50);
  }
}

/** Servers answer 503 with Retry-After, and are woken after a time: what `call` calls meanwhile has to try again. */
export async function asleep(place, call, milliseconds = 700) {
  await postToAll(place, "sleep");
  const awake = sleep(milliseconds).then(() => postToAll(place, "wake_up"));
  try {
    await call();
  } finally {
    await awake;
  }
}

async function postToAll(place, action) {
  for (const admin of place.admin) {
    const signal = AbortSignal.timeout(60_000);
    const response = await fetch(`${admin}/v1/octavo/${action}`, { method: "POST", signal });
    assert(response.ok, `${action}: ${response.status} ${await response.text()}`);
  }
}
