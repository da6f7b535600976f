"""The step loop: requests in, one batch per step through the backend, outputs out.

Runs in one thread, does no I/O and has no clock of its own. Each step is planned, launched and collected. A backend
that keeps a copy of the row table needs no token from the engine. The engine then plans and launches the next step
before it collects the one in flight: the host plans while the device computes.

    step n      plan n, launch n, collect n - 1
    step n + 1  plan n + 1, launch n + 1, collect n

Such a plan does not know which sequences the tokens of the in-flight step finish. At most one row per finished sequence
is wasted. Its blocks are reused only by later launches, and the device runs launches in order.

A backend that reads from the engine's table may run several decode steps per launch (`core.decode_run`). They are
collected together, and counted one by one.

The mask of a guided row depends on the token before it. A step with such rows samples in a second call, once their
masks are filled. A thread fills them while the native call computes; if a step is in flight, this thread does so after
it has collected that step, while the device computes.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections import deque
from collections.abc import Callable, Iterable

import numpy as np

from octavo_common.failpoints import Failpoints
from octavo_inference.common.errors import DeviceLostError, RequestError
from octavo_inference.config.cache_policy import POLICIES
from octavo_inference.core.adapters import AdapterPool, Denied, Granted, ReadAdapter
from octavo_inference.core.backend import Backend
from octavo_inference.core.block_pool import BlockPool, PoolError, Retention
from octavo_inference.core.block_tables import published
from octavo_inference.core.counters import Counters
from octavo_inference.core.decode_run import MOST_SECONDS, plan_run
from octavo_inference.core.engine_limits import EngineLimits
from octavo_inference.core.expert_load import ExpertMeter
from octavo_inference.core.grammar_compiler import GrammarCompiler
from octavo_inference.core.guidance import Compile
from octavo_inference.core.guided_steps import GuidedSteps
from octavo_inference.core.input_batch import InputBatch
from octavo_inference.core.logit_rules import bitmask, logit_rules
from octavo_inference.core.masks import MaskJob
from octavo_inference.core.model_input import NO_CHOICE, NOT_NUMBERS, DecodeRun, Float32, Int32, StepResult
from octavo_inference.core.outputs import end_output, pooled_output, token_logprobs, token_output
from octavo_inference.core.pending_step import PendingStep, launch
from octavo_inference.core.prefill_budget import PrefillBudget
from octavo_inference.core.request import (
    ADAPTER_UNUSABLE,
    NO_ADAPTER,
    REFUSED,
    FinishReason,
    Output,
    Request,
    TokenLogprobs,
)
from octavo_inference.core.request_queue import place_of
from octavo_inference.core.request_table import RequestTable
from octavo_inference.core.sampling import sequence_seed
from octavo_inference.core.scheduler import Scheduler
from octavo_inference.core.scheduler_output import SchedulerOutput
from octavo_inference.core.sequence import Sequence, SequenceState
from octavo_inference.core.speculation.counts import SpeculationTotals
from octavo_inference.core.speculation.speculator import Speculator
from octavo_inference.core.speculation.verification import VerifiedDraft, agreed
from octavo_inference.core.state_pool import StatePool
from octavo_inference.core.swapping import swap_in, swap_out
from octavo_inference.core.validation import (
    check_guidance,
    check_ids,
    check_pooling,
    check_prompt,
    check_sampling,
    check_task,
)
from octavo_inference.models.info import ModelInfo
from octavo_inference.models.pooled_head import PooledHead
from octavo_protocol.hashing import KEY_BYTES, root_hash
from octavo_protocol.load import EngineStats

log = logging.getLogger(__name__)

# A failed step ends the requests in it. This many failures in a row mean that the device is lost, not a bad request.
_MAX_FAILED_STEPS = 3
_CHECK_SECONDS = 30.0
# Between two looks at deadlines while requests only wait for their grammars or adapters.
_WAIT_SECONDS = 0.5


class Engine:
    """Serves requests on one backend. Use it from one thread.

    `clock` returns seconds from any fixed point, `entropy` 64 random bits for requests without a seed.
    `load_vocabulary` prepares the model's tokens for grammars and returns what compiles them. It runs once in a thread,
    for the first grammar or in an idle moment (`on_idle`); without it, grammars are refused. `head` is what follows the
    pooling of hidden states.
    """

    def __init__(
        self,
        backend: Backend,
        config: ModelInfo,
        limits: EngineLimits,
        *,
        clock: Callable[[], float],
        failpoints: Failpoints | None = None,
        entropy: Callable[[], int] = lambda: secrets.randbits(64),
        load_vocabulary: Callable[[], Compile] | None = None,
        head: PooledHead | None = None,
        speculator: Speculator | None = None,
        read_adapter: ReadAdapter | None = None,
    ) -> None:
        self.backend = backend
        self.config = config
        self.limits = limits
        self._head = head
        self.heartbeat = 0
        # A file descriptor that is readable when a message has arrived, which ends a run of steps; -1 for none.
        self.message_fd = -1
        self.counters = Counters()
        self._clock = clock
        self._entropy = entropy
        self._failpoints = failpoints or Failpoints("")
        self._eos = frozenset(config.eos_token_ids)
        self._roots: dict[tuple[str, str], bytes] = {}
        self._checked = -_CHECK_SECONDS
        self._arrivals = 0
        self._failures = 0
        self._prefill_budget = None if limits.prefill_slowdown is None else PrefillBudget(limits.prefill_slowdown)
        self._rows = InputBatch(
            limits.max_running,
            limits.max_model_len,
            backend.block_size,
            config.vocab,
            backend.hidden_size,
            len(backend.layout.groups),
            masks=limits.max_samples or limits.max_running if speculator is not None and speculator.adjusted else 0,
        )
        # In-flight steps, the oldest first: at most `depth` of them while the next step is planned.
        self._pending: deque[PendingStep] = deque()
        self._depth = backend.steps_ahead if limits.overlap else 0
        self._collected = -math.inf
        self._runs = backend.decode_runs and self._depth == 0
        self._step_seconds = 0.0
        self._speculator = speculator
        self._experts = ExpertMeter(backend.expert_tokens)
        blocks = backend.num_blocks
        self._pool = BlockPool(blocks, [Retention(p.seconds, int(p.share * blocks)) for p in POLICIES.values()])
        self._states: StatePool | None = None
        if backend.state_slots:
            snapshots = backend.state_slots - limits.max_running
            kept = [Retention(p.seconds, math.ceil(p.share * snapshots)) for p in POLICIES.values()]
            self._states = StatePool(limits.max_running, backend.state_slots, kept)
        self.scheduler = Scheduler(
            self._pool,
            self._rows,
            self._states,
            layout=backend.layout,
            block_size=backend.block_size,
            max_running=limits.max_running,
            budget=limits.max_batched_tokens,
            chunked=limits.chunked_prefill,
            caching=limits.prefix_caching,
            static_wait=limits.static_wait,
            prefill_budget=self._prefill_budget,
            host_blocks=limits.host_blocks,
            host_state_blocks=limits.host_state_blocks,
            max_scores=backend.max_prompt_scores,
            steps_ahead=self._depth,
            speculator=speculator,
            max_samples=limits.max_samples or limits.max_running,
            failpoints=self._failpoints,
        )
        self.adapters = AdapterPool(
            backend,
            read_adapter,
            limits.max_cached_adapters,
            limits.adapter_memory,
            self.scheduler.queue.beside(),
        )
        self._live = RequestTable(self.scheduler, clock, self.adapters.finished)
        self.guided = GuidedSteps(
            load_vocabulary,
            self.scheduler,
            bitmask(tuple(self._eos), config.vocab),
            self.counters.guidance,
            clock,
            jump_ahead=self._depth == 0,
            vocab=config.own_vocab,
        )

    @property
    def embedding_size(self) -> int:
        """Elements of an embedding, or 1 for a score; 0 if the backend gives no hidden states."""
        return self.backend.hidden_size if self._head is None else self._head.size

    @property
    def speculation(self) -> SpeculationTotals | None:
        """Totals of speculation; None without."""
        return None if self._speculator is None else self._speculator.totals

    @property
    def overlaps(self) -> bool:
        """True if a step is launched while the previous one is in flight."""
        return self._depth > 0

    @property
    def has_work(self) -> bool:
        """True if a step has work to do, or will have once a grammar is compiled or an adapter read."""
        waits = bool(self.guided.compiling) or bool(self.adapters.waiting) or self.adapters.is_ready
        return bool(self._pending) or self.scheduler.has_work or waits

    @property
    def grammar_compiler(self) -> GrammarCompiler | None:
        """Compiles the grammars of requests; None if they are refused."""
        return self.guided.compiler

    @property
    def stalled(self) -> bool:
        """True if the last step left sequences waiting for rows, blocks or budget, and some of them still wait."""
        return self.scheduler.stalled and len(self.scheduler.queue) > 0

    def delay(self) -> float:
        """Seconds until a step has something to compute if no message arrives first; usually 0.

        While requests only wait for grammars or adapters, it is the time until the next look (`on_ready` comes before).
        Infinite without work.
        """
        if self._pending or self.guided.has_compiled or self.adapters.is_ready:
            return 0.0
        delay = self.scheduler.delay(self._clock()) if self.scheduler.has_work else math.inf
        # A compile or a read may take longer than deadlines, and than an engine may be silent.
        return min(delay, _WAIT_SECONDS) if self.adapters.waiting or self.guided.compiling else delay

    def wait(self) -> None:
        """Wait until a grammar is compiled or an adapter read, if a step has nothing to do before.

        For programs without other work.
        """
        if self._pending or self.scheduler.has_work or self.guided.has_compiled or self.adapters.is_ready:
            return
        if self.adapters.waiting and self.adapters.wait():
            return
        if self.grammar_compiler is not None:
            self.grammar_compiler.wait()

    def submit(self, request: Request) -> None:
        """Queue a request. The sender bounds the queue length. Raises `RequestError` if it can never be served."""
        sampling = request.sampling
        check_sampling(sampling, self.config.vocab)
        check_task(request, self.config.task)
        check_pooling(request, self.backend.hidden_size)
        check_guidance(request, self.config.vocab, compiles=self.grammar_compiler is not None)
        prompt = check_prompt(request, self.config.vocab, self.limits.max_model_len)
        if not request.adapter:
            self._check_ids(request, 0)
        if request.id in self._live:
            raise RequestError(f"request id {request.id!r} is already in use", "id")
        now = self._clock()
        answer = self.limits.max_model_len if sampling.max_tokens is None else sampling.max_tokens
        if request.pooling is not None:
            answer = 0
        limit = min(len(prompt) + answer, self.limits.max_model_len)
        seed = self._entropy() if sampling.seed is None else sampling.seed
        rules = logit_rules(sampling, self.config.vocab)
        policy = list(POLICIES).index(request.cache_policy or self.limits.cache_policy)
        sequences = []
        for index in range(sampling.n):
            self._arrivals += 1
            sequences.append(
                Sequence(
                    request,
                    index,
                    prompt,
                    limit=limit,
                    seed=sequence_seed(seed, index),
                    eos=self._eos.union(request.ends),
                    root=self._root(request.salt),
                    arrival=self._arrivals,
                    arrived=now,
                    policy=policy,
                    rules=rules,
                )
            )
        granted = None
        if request.adapter:
            granted = self.adapters.begin(request.id, request.adapter, place_of(sequences[0]))
        if isinstance(granted, Denied):
            log.warning("a request for adapter %s: %s", request.adapter, granted.failure)
            raise RequestError(ADAPTER_UNUSABLE, "model")
        if granted is not None:
            try:
                self._check_ids(request, granted.ids_end)
            except RequestError:
                self.adapters.finished(request.id)
                raise
        self._live.add(sequences, now)
        self.counters.requests += 1
        self.counters.pooled_requests += request.pooling is not None
        self.counters.prompt_tokens += len(prompt)
        if granted is not None:
            self._use_adapter(sequences, granted)
        if granted is not None or not request.adapter:
            self._guide_and_queue(sequences)

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Free a request, or one of its sequences, at once. Unknown ids are ignored: they have just finished."""
        self._live.abort(request_id, index)

    def step(self) -> list[Output]:
        """Launch one step and return the outputs of the step collected: the same one, or the one launched before it.

        A failed step ends its requests with an error output. The third failure in a row is raised.
        """
        self.heartbeat += 1
        begin = self._clock()
        outputs = self._live.expire(begin)
        self._take_adapters(outputs, begin)
        self._take_compiled(outputs)
        guesses = self._speculator is not None and self._speculator.tries
        if guesses:
            outputs += self._finish(0)  # guesses follow tokens that are known, and the step after them those accepted
        launched = self._launch(begin, outputs)
        outputs += self._finish(self._depth if launched and not guesses else 0)
        if self._pending:
            outputs += self._choose(self._pending[-1])
        return outputs

    def _finish(self, depth: int) -> list[Output]:
        """Collect in-flight steps until `depth` of them are left."""
        outputs: list[Output] = []
        while len(self._pending) > depth:
            if len(self._pending) == 1:
                outputs += self._choose(self._pending[0])
            if self._pending:
                outputs += self._collect(self._pending.popleft())
        return outputs

    def stats(self) -> EngineStats:
        """Current engine state, in constant time: cheap enough to call every step.

        A block of the stats holds tokens of all layers: one block of the pool for each of a sequence's tables.
        """
        scheduler, counters = self.scheduler, self.counters
        tables = scheduler.tables.count
        total = self.backend.num_blocks // tables
        pinned = min(-(-self._pool.pinned // tables), total)
        oldest = scheduler.queue.oldest()
        return EngineStats(
            block_size=self.backend.block_size,
            blocks_total=total,
            blocks_pinned=pinned,
            blocks_cached=min(self._pool.cached // tables, total - pinned),
            running=len(scheduler.running),
            waiting=len(scheduler.queue) + scheduler.pending_forks + self._unready(),
            waiting_tokens=scheduler.queue.tokens,
            uncached_prompt_tokens=scheduler.uncached(),
            oldest_wait=0.0 if oldest is None else max(0.0, self._clock() - oldest),
            preemptions=scheduler.preemptions,
            swaps=scheduler.swaps,
            checks=counters.checks,
            unused_slots=scheduler.unused_slots(),
            recomputed=scheduler.recomputed,
            deferred=scheduler.pending_forks,
            state_slots=self.backend.state_slots,
            state_slots_used=0 if self._states is None else len(scheduler.running) + self._states.cached,
            state_snapshots=0 if self._states is None else self._states.cached,
            requests=counters.requests,
            pooled_requests=counters.pooled_requests,
            prompt_tokens=counters.prompt_tokens,
            generation_tokens=counters.generation_tokens,
            prefix_hit_tokens=scheduler.hit_tokens,
            max_running=self.limits.max_running,
            max_batched_tokens=self.limits.max_batched_tokens,
            max_waiting=self.limits.max_queued,
            steps=counters.steps(),
            expert_load=self._experts.load(self._clock()),
        )

    def cache_changes(self) -> tuple[bytes, bytes]:
        """Keys of blocks registered in and removed from the prefix cache since the last call.

        Those of the first group of layers: the one with full attention, if the model has any.
        """
        known, forgotten = (filter(published, keys) for keys in self._pool.changes())
        return b"".join([key[:KEY_BYTES] for key in known]), b"".join([key[:KEY_BYTES] for key in forgotten])

    def check(self) -> None:
        """Check the block pool's invariants against the sequences. Raises `PoolError`; for tests and idle moments."""
        self.scheduler.check()
        if self._states is not None and self._states.pending and not self._pending:
            raise PoolError(f"{self._states.pending} snapshots of states are reserved, but no step is in flight")

    def on_idle(self) -> float | None:
        """Run the accounting check, at most every 30 seconds, and prepare later steps. For moments without work.

        The backend prepares first, then the compiler of grammars. Returns the seconds after which another idle call is
        due, or None if nothing is left to prepare. Raises `PoolError`.
        """
        now = self._clock()
        if now - self._checked >= _CHECK_SECONDS:
            self._checked = now
            self.check()
            self.counters.checks += 1
        if self.backend.idle():
            return 0.0
        # Before the first step, a start-up waits for this engine.
        return self.guided.prepare(now - self._collected) if self.heartbeat else None

    def reset_cache(self) -> None:
        """Reset the prefix cache: later requests match nothing computed so far."""
        self.scheduler.reset_cache()

    def _root(self, salt: str, adapter: str = "") -> bytes:
        key = salt, adapter
        if key not in self._roots:
            if len(self._roots) >= 1024:
                self._roots.clear()
            self._roots[key] = root_hash(self.config.digest, adapter, salt)
        return self._roots[key]

    def _unready(self) -> int:
        """Sequences that wait for their grammar or their adapter."""
        waiting = [*self.guided.compiling, *self.adapters.waiting]
        return sum(len(self._live.sequences(request_id)) for request_id in waiting)

    def _use_adapter(self, sequences: list[Sequence], granted: Granted) -> None:
        for sequence in sequences:
            sequence.adapter = granted.slot
            sequence.root = self._root(sequence.request.salt, granted.digest)

    def _take_adapters(self, outputs: list[Output], now: float) -> None:
        """Queue the requests whose adapters are loaded, and end those whose adapters cannot be used."""
        refused: dict[str, str] = {}
        for granted in self.adapters.advance(now):
            sequences = self._live.sequences(granted.request_id)
            if isinstance(granted, Denied):
                log.warning("a request's adapter cannot be used: %s", granted.failure)
                outputs += self._live.end(granted.request_id, "error", ADAPTER_UNUSABLE, NO_ADAPTER)
                continue
            self._use_adapter(sequences, granted)
            try:
                self._check_ids(sequences[0].request, granted.ids_end)
            except RequestError as error:
                refused[granted.request_id] = str(error)
            else:
                self._guide_and_queue(sequences)
        for request_id, why in refused.items():
            outputs += self._live.end(request_id, "error", why, REFUSED)

    def _check_ids(self, request: Request, ids_end: int) -> None:
        """Raise `RequestError` for tokens of neither the model nor its adapter, whose rows end before `ids_end`."""
        own = self.config.own_vocab
        if own < self.config.vocab:
            check_ids(request, max(own, ids_end))

    def _guide_and_queue(self, sequences: list[Sequence]) -> None:
        """Queue the sequences of a request, unless its grammar has to be compiled first."""
        if self.guided.begin(sequences):
            self._queue(sequences)

    def _queue(self, sequences: list[Sequence]) -> None:
        self.scheduler.add(sequences[0], self._clock())
        if len(sequences) > 1:
            self.scheduler.add_forks(sequences[0], sequences[1:])

    def _take_compiled(self, outputs: list[Output]) -> None:
        """Queue the requests whose grammars are compiled, and refuse those whose grammars cannot be."""
        for request_id, compiled in self.guided.compiled():
            sequences = self._live.sequences(request_id)
            if not sequences:
                continue  # aborted or out of time since
            if isinstance(compiled, RequestError):
                outputs += self._refuse_grammar(request_id, str(compiled))
            else:
                self.guided.guide(sequences, compiled)
                self._queue(sequences)

    def _launch(self, now: float, outputs: list[Output]) -> bool:
        """Plan and launch a step. Returns whether one was launched; error outputs are appended to `outputs`."""
        plan = SchedulerOutput()
        try:
            self.scheduler.schedule(plan, now)
            run = self._plan_run(plan, now)
        except PoolError:
            raise  # the block accounting is wrong: answers could mix, so no next step is safe
        except Exception as error:  # noqa: BLE001 -- an error of one request must not end the others
            self._note_failure(error)
            for sequence, *_ in plan.swap_out:
                self.scheduler.drop_host(sequence)
            self.scheduler.on_failed(plan)
            outputs += self._fail(self.scheduler.running)
            return False
        swap_out(plan, self.backend, self.scheduler, self._failpoints)
        if plan.empty:
            return False
        masks: MaskJob | None = None
        try:
            self._failpoints.hit("engine.step")
            swap_in(plan, self.backend, self.scheduler, self._failpoints)
            self._copy(plan)
            guided = self._rows.guided(plan)
            masks = None if self._pending else self.guided.start(guided)
            pending = launch(self.backend, self._rows, plan, now, guided, masks, run)
            if plan.state_forks:
                self.backend.copy_states(plan.state_forks)
        except DeviceLostError:
            raise  # no later step can succeed
        except Exception as error:  # noqa: BLE001
            self._note_failure(error)
            self.guided.abandon(masks)
            self.scheduler.on_failed(plan)
            outputs += self._fail(plan.sequences)
            return False
        self.scheduler.on_launch(plan)
        self._pending.append(pending)
        return True

    def _copy(self, plan: SchedulerOutput) -> None:
        """The copies on the device before a step."""
        if plan.block_copies:
            self.backend.copy_blocks(plan.block_copies)
        if plan.state_hits:
            self.backend.copy_states(plan.state_hits)
        if plan.snapshots:
            self.backend.copy_states([(snapshot.row, snapshot.slot) for snapshot in plan.snapshots])

    def _plan_run(self, plan: SchedulerOutput, now: float) -> DecodeRun | None:
        """The run of steps that begins with a plan; None without."""
        if not self._runs or self.guided.compiling or self.adapters.waiting:
            return None
        if self._prefill_budget is not None and self._prefill_budget.pauses_prompts:
            return None  # prompts wait for one step, not for a run
        seconds = min(MOST_SECONDS, self._live.deadlines.next() - now)
        if 2 * self._step_seconds > seconds:
            return None  # its second step would end too late
        return plan_run(plan, self.scheduler, seconds, self.message_fd)

    def _choose(self, pending: PendingStep) -> list[Output]:
        """Fill the masks of the newest step and let it sample, once: all tokens before its own are known."""
        if not pending.guided:
            return []
        masks, failed = self.guided.finish(pending)
        outputs: list[Output] = []
        for sequence, message in failed:
            outputs += self._refuse_grammar(sequence.request.id, message)
        try:
            pending.handle.choose(masks)
        except DeviceLostError:
            raise
        except Exception as error:  # noqa: BLE001
            self._note_failure(error)
            doomed = list(self._pending)
            self._pending.clear()
            for each in doomed:
                self.scheduler.on_failed(each.plan)
            outputs += self._fail(pending.plan.sequences)
        return outputs

    def _collect(self, pending: PendingStep) -> list[Output]:
        """Wait for an in-flight step and return the outputs of its tokens."""
        plan = pending.plan
        try:
            result = pending.handle.collect()
        except DeviceLostError:
            raise
        except Exception as error:  # noqa: BLE001
            self._note_failure(error)
            # Steps launched after it read KV and tokens that it did not write.
            doomed = [pending, *self._pending]
            self._pending.clear()
            for each in doomed:
                self.scheduler.on_failed(each.plan)
            return self._fail(sequence for each in doomed for sequence in each.plan.sequences)
        self._failures = 0
        verified = self._verify(plan, result) if plan.drafts else []
        tokens = np.atleast_2d(result.tokens)
        steps, rows = len(tokens), len(plan.decodes) + len(plan.drafts)
        if result.tokens.ndim > 1:
            self.scheduler.on_run(plan, tokens[:-1])
        self.scheduler.on_computed(plan, steps)
        if plan.snapshots:
            self.scheduler.on_copied(plan, self._clock())
        self.counters.add_state(len(self.scheduler.running), self.scheduler.unused_slots(), steps)
        outputs = self._emit(plan, result, tokens[:, : len(plan.samples)])
        for draft in verified:
            outputs += self._emit_verified(draft, result)
        now = self._clock()
        # The device started this step only after it finished the previous one.
        seconds = (now - max(pending.begin, self._collected)) / steps
        self._collected, self._step_seconds = now, seconds
        accepted = sum(draft.accepted for draft in verified)
        drafted = sum(len(draft.tokens) for draft in plan.drafts)
        for step in range(steps):
            # A row for each token that is decoded: with guesses, a sequence has several.
            context = pending.context + step * rows
            self.counters.add_step(seconds, pending.prefill, rows + accepted, context, plan.idle_rows)
        if self._speculator is not None and not plan.chunks:
            self._speculator.stepped(rows, drafted, accepted, seconds, steps)
        guessed = bool(plan.drafts) or (self._speculator is not None and self._speculator.is_behind)
        if self._prefill_budget is not None and not guessed:
            self._prefill_budget.observe(seconds, rows, pending.prefill, pending.pairs, steps)
        return outputs

    def _emit(self, plan: SchedulerOutput, result: StepResult, steps: Int32) -> list[Output]:
        """Outputs of a step, or of a run, whose tokens are `steps` [steps, samples]."""
        outputs: list[Output] = []
        for chunk, scored in zip(plan.scores, result.scores, strict=True):
            if chunk.sequence.state is SequenceState.FINISHED:
                continue
            if np.isnan(scored.logprob).any():
                outputs += self._refuse_numbers(chunk.sequence)
            else:
                chunk.scores.store(chunk.position, scored)
        for i, (sequence, (*earlier, token)) in enumerate(zip(plan.samples, steps.T.tolist(), strict=True)):
            if sequence.state is SequenceState.FINISHED:
                continue  # ended by an earlier token, an abort, or a sibling with NaN logits
            if earlier and token < 0:
                first = sequence.num_known_tokens - len(earlier) == sequence.prompt_len
                outputs.append(token_output(sequence, earlier, None, None, None, first=first))
                self.counters.generation_tokens += len(earlier)
            outputs += self._take(sequence, token, earlier, result, i)
        return outputs if result.pooled is None else outputs + self._emit_pooled(plan.pooled, result.pooled)

    def _take(self, sequence: Sequence, token: int, earlier: list[int], result: StepResult, row: int) -> list[Output]:
        """Outputs of the token of a sample row, which may be none. `earlier`: see `_accept`."""
        if token == NO_CHOICE and (sequence.constrained or sequence.num_known_tokens < sequence.min_total):
            return [self._end_without_token(sequence)]
        if token < 0:
            return self._refuse_numbers(sequence)
        return self._accept(sequence, token, token_logprobs(result, row) if sequence.logprobs else None, earlier)

    def _accept(
        self, sequence: Sequence, token: int, logprobs: TokenLogprobs | None, earlier: list[int]
    ) -> list[Output]:
        """Append a sampled token, and the tokens that follow in any case. Ends a sequence that is over.

        `earlier` are the tokens of the same run before it, which the sequence has already.
        """
        known = sequence.total - sequence.pending
        sequence.tokens[known] = token
        sequence.pending -= 1
        reason: FinishReason | None = None
        stop: int | None = None
        if token in sequence.ends:
            reason = "stop"
        elif token in sequence.stops:
            reason, stop = "stop", token
        tokens: list[int] = [token]
        error: RequestError | None = None
        if sequence.guide is not None and reason is None:
            try:
                tokens += self.guided.advance(sequence, sequence.guide, token)
            except RequestError as found:
                error = found
        self.counters.generation_tokens += len(earlier) + len(tokens)
        over = error is not None or (sequence.guide is not None and sequence.guide.is_complete)
        if reason is None and not over and known + len(tokens) >= sequence.limit:
            reason = "length"
        first = known - len(earlier) == sequence.prompt_len
        output = token_output(sequence, earlier + tokens, logprobs, reason, stop, first=first)
        if reason is not None:
            self._live.finish(sequence)
        elif error is not None:
            return [output, *self._refuse_grammar(sequence.request.id, str(error))]
        elif over:
            # A second output: the last token of an output that ends with "stop" is an end or stop id.
            return [output, self._end_without_token(sequence)]
        return [output]

    def _verify(self, plan: SchedulerOutput, result: StepResult) -> list[VerifiedDraft]:
        """Accept the tokens of drafts as far as the samples agree with them."""
        found = []
        first = len(plan.samples)
        for draft in plan.drafts:
            end = first + 1 + len(draft.tokens)
            if draft.sequence.state is SequenceState.FINISHED:
                first = end  # its mask could not be filled
                continue
            samples = result.tokens[first:end]
            guide = draft.sequence.guide
            closed = guide is not None and guide.budget_reached
            if (samples == NOT_NUMBERS).any():
                # The request ends. Its blocks are kept until they are cleared.
                found.append(VerifiedDraft(draft.sequence, first, 0, end))
                first = end
                continue
            accepted = agreed(draft, samples)
            self.counters.guidance.budgets_reached += guide is not None and guide.budget_reached and not closed
            self.scheduler.on_verified(draft, samples[:accepted].tolist())
            if self._speculator is not None:
                self._speculator.verified(draft, accepted)
            found.append(VerifiedDraft(draft.sequence, first, accepted, end))
            first = end
        return found

    def _emit_verified(self, verified: VerifiedDraft, result: StepResult) -> list[Output]:
        """Outputs of a draft: its accepted tokens, and the sample after them."""
        sequence, first, accepted, end = verified
        if sequence.state is SequenceState.FINISHED:
            return []  # by a sibling with NaN logits
        if (result.tokens[first:end] == NOT_NUMBERS).any():
            return self._refuse_numbers(sequence)
        *earlier, token = result.tokens[first : first + accepted + 1].tolist()
        outputs: list[Output] = []
        if earlier and (sequence.logprobs or token < 0):
            # Each with its log-probability; or the end comes without a token.
            start = sequence.num_known_tokens - accepted
            for place, each in enumerate(earlier):
                logprobs = token_logprobs(result, first + place) if sequence.logprobs else None
                is_first = start + place == sequence.prompt_len
                outputs.append(token_output(sequence, [each], logprobs, None, None, first=is_first))
            self.counters.generation_tokens += len(earlier)
            earlier = []
        return outputs + self._take(sequence, token, earlier, result, first + accepted)

    def _emit_pooled(self, sequences: list[Sequence], sums: Float32) -> list[Output]:
        outputs: list[Output] = []
        for sequence, total in zip(sequences, sums, strict=True):
            if sequence.state is SequenceState.FINISHED:
                continue  # aborted or out of time since
            if not np.isfinite(total).all():
                outputs += self._refuse_numbers(sequence)
                continue
            outputs.append(pooled_output(sequence, total, self._head))
            self._live.finish(sequence)
        return outputs

    def _refuse_grammar(self, request_id: str, message: str) -> list[Output]:
        """End a request with an error of its grammar."""
        return self._live.end(request_id, "error", f"grammar: {message}", REFUSED)

    def _end_without_token(self, sequence: Sequence) -> Output:
        """End a sequence whose own rules ban every token, or whose grammar is complete."""
        output = end_output(sequence)
        self._live.finish(sequence)
        return output

    def _note_failure(self, error: Exception) -> None:
        """Log and count a failed step. Raises the error again after too many failures in a row."""
        log.error("step %d failed", self.heartbeat, exc_info=error)
        self._failures += 1
        if self._failures >= _MAX_FAILED_STEPS:
            raise error

    def _refuse_numbers(self, sequence: Sequence) -> list[Output]:
        """End the request of a sequence with NaN logits, and remove its blocks from the prefix cache."""
        request_id = sequence.request.id
        fields = {"request_id": sequence.request.request_id}
        log.error("the model's output at token %d is not a number", sequence.num_known_tokens, extra=fields)
        held = set()
        for sibling in self._live.sequences(request_id):
            self.scheduler.evict_suspect(sibling)
            held.update(self.scheduler.tables.held(sibling))
        message = "the model's output for this request is not a number (NaN or infinity); its weights may be damaged"
        outputs = self._live.end(request_id, "error", message)
        if self.scheduler.tables.frees:
            held.update(self._pool.free)  # those that its windows have passed are among them
        # Attention reads the unwritten slots of a reused block with weight 0, and 0 * NaN is NaN.
        self.backend.clear_blocks([block for block in held if self._pool.idle([block])])
        return outputs

    def _fail(self, sequences: Iterable[Sequence]) -> list[Output]:
        """End every request that took part in a step: its KV may be partly written."""
        # The cause may contain paths or addresses, so clients do not get it; the log has it.
        message = "the step this request was part of failed; the server's log says why"
        requests = {s.request.id: s.request for s in sequences if s.state is not SequenceState.FINISHED}
        for request in requests.values():
            log.error("a request ended with the step that failed", extra={"request_id": request.request_id})
        return [output for request_id in requests for output in self._live.end(request_id, "error", message)]
