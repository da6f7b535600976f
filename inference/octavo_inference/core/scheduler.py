"""The scheduler: chooses how many tokens each sequence computes in the next step.

There are no phases. A sequence has `computed` and `total` tokens, and each step assigns tokens so that `computed`
catches up with `total`. One missing token is a decode. More are a prefill chunk, the remainder after a prefix hit or a
resumed preempted sequence; all are handled alike. Order within a step: decodes, running chunks, waiting sequences.

`on_launch` advances both counts, so the next step can be planned before this one's tokens are known. Blocks enter the
prefix cache after their step is computed (`on_computed`).
"""

from __future__ import annotations

from collections import Counter, deque
from operator import attrgetter

from octavo_common.failpoints import Failpoints
from octavo_common.virtual_token_counter import OUTPUT_TOKEN, PROMPT_TOKEN
from octavo_inference.core.block_pool import BlockPool, PoolError
from octavo_inference.core.block_tables import BlockTables, Hit
from octavo_inference.core.input_batch import InputBatch
from octavo_inference.core.model_input import Int32
from octavo_inference.core.prefill_budget import PrefillBudget, PromptRoom
from octavo_inference.core.request_queue import WaitingQueue, level
from octavo_inference.core.scheduler_output import SchedulerOutput, ScoredChunk, Snapshot
from octavo_inference.core.sequence import Sequence, SequenceState
from octavo_inference.core.snapshot_policy import next_snapshot
from octavo_inference.core.speculation.speculator import Draft, Speculator
from octavo_inference.core.state_pool import StatePool
from octavo_inference.core.static_batching import next_batch
from octavo_inference.models.layer_groups import PoolLayout
from octavo_protocol.hashing import block_hash

# What these pool is computed in the prompt's first step already.
_POOLED_WHOLE = frozenset({"mean", "cls"})


class Scheduler:
    """Owns the block pool, the rows and the queue. `budget` is query tokens per step, at least the number of rows.

    `static_wait`: None admits sequences at every step (continuous batching). A number of seconds makes batches static.
    A batch forms when all rows can be filled or the longest wait reaches this time. The next one forms after all of it
    has finished. `prefill_budget` may reduce the prompt tokens in a step with decoding sequences.

    `host_blocks`: how many blocks of preempted sequences the host can keep; sequences that do not fit are recomputed.
    The state of a sequence, with `states`, takes the place of `host_state_blocks` of them.
    `max_scores` bounds a step's tokens of prompts with log-probabilities, even where prompts are not chunked.
    `layout`: the groups of layers that have block tables of their own. `steps_ahead`: how many steps are launched
    before the oldest is collected. `speculator` guesses tokens for a step to verify. The step samples at most
    `max_samples` tokens then.
    """

    def __init__(
        self,
        pool: BlockPool,
        rows: InputBatch,
        states: StatePool | None = None,
        *,
        layout: PoolLayout,
        block_size: int,
        max_running: int,
        budget: int,
        chunked: bool,
        caching: bool,
        static_wait: float | None = None,
        prefill_budget: PrefillBudget | None = None,
        host_blocks: int = 0,
        host_state_blocks: int = 0,
        max_scores: int | None = None,
        steps_ahead: int = 0,
        speculator: Speculator | None = None,
        max_samples: int = 0,
        failpoints: Failpoints | None = None,
    ) -> None:
        self.pool = pool
        self.rows = rows
        self.states = states
        self.block_size = block_size
        self.max_running = max_running
        self.budget = budget
        self.chunked = chunked
        self.caching = caching
        self.static_wait = static_wait
        self.prefill_budget = prefill_budget
        self.host_blocks = self.host_free = host_blocks
        self.host_state_blocks = host_state_blocks
        self._leaves_snapshots = caching and states is not None and states.snapshots > 0
        self.max_scores = max_scores
        self.speculator = speculator
        self._max_samples = max_samples
        self.tables = BlockTables(
            pool,
            rows,
            layout.groups,
            block_size,
            chunk=budget * (1 + steps_ahead),
            failpoints=failpoints or Failpoints(""),
        )
        self.queue = WaitingQueue()
        self.running: list[Sequence] = []
        self.pending_forks = 0
        # The current static batch: members that have not started, and the number that have.
        self._batch: deque[Sequence] = deque()
        self._batch_rows = 0
        # True if the last step left sequences waiting for rows, blocks or budget.
        self.stalled = False
        self.preemptions = 0
        self.swaps = 0
        self.hit_tokens = 0
        self.recomputed = 0

    @property
    def has_work(self) -> bool:
        """True if a sequence runs or waits."""
        return bool(self.running) or len(self.queue) > 0

    def delay(self, now: float) -> float:
        """Seconds until a step has something to compute if no request arrives first."""
        oldest = self.queue.oldest()
        if self.static_wait is None or self.running or oldest is None or len(self.queue) >= self.max_running:
            return 0.0
        return max(0.0, oldest + self.static_wait - now)

    def add(self, sequence: Sequence, now: float) -> None:
        """Queue a sequence, new or preempted."""
        if self.caching:
            self._hash_prompt(sequence)
        sequence.state = SequenceState.WAITING
        sequence.enqueued = now
        known = self._cached(sequence, sequence.total, now)[1] * self.block_size
        self.queue.push(sequence, max(1, sequence.total - max(known, sequence.swapped_tokens)))

    def add_forks(self, leader: Sequence, forks: list[Sequence]) -> None:
        """Make siblings wait for the prompt of `leader`, which waits or runs, to share its blocks."""
        leader.forks = forks
        for fork in forks:
            fork.leader = leader
        self.pending_forks += len(forks)

    def schedule(self, plan: SchedulerOutput, now: float) -> None:
        """Plan one step and allocate all its blocks. Preempted sequences return to the queue.

        After an exception the plan is incomplete: finish all running sequences and drop the host copies in `swap_out`.
        """
        self.pool.expire(now)
        if self.states is not None:
            self.states.expire(now)
        self.tables.release_passed(self.running, now)
        self._plan_decodes(plan, now)
        blocked = False
        room = self._prompt_room(len(plan.decodes))
        for sequence in self.running if len(plan.decodes) < len(self.running) else ():
            missing = sequence.total - sequence.computed
            # A single missing token is a decode, except in a prompt that is only embedded.
            if missing > (sequence.pooling is None) and (self.chunked or missing <= room.tokens):
                take = min(missing, room.chunk(sequence.computed), self._score_room(sequence, plan))
                if take and self.tables.frees:
                    take = self.tables.cover(sequence, take)
                    blocked = blocked or take == 0
                if take:
                    if self.states is not None:
                        self._leave_snapshot(sequence, plan, self.states)
                        take = self._cut(sequence, take)
                    plan.chunks.append((sequence, take))
                    room.take(take, sequence.computed)
        if blocked and plan.empty and all(s.confirmed == s.computed for s in self.running):
            self._preempt(plan, now)  # no running prompt has the blocks of its next tokens, and no step will free any
        # After a preemption no blocks are left; an admission would only cause the next preemption.
        while room.tokens > 0 and not (plan.preempted or blocked):
            head = self._next(now)
            take = 0 if head is None else self._admit(head, room, plan, now)
            if head is None or take == 0:
                break
            plan.chunks.append((head, take))
            room.take(take, head.computed)
        if self.speculator is not None:
            self._plan_drafts(plan, self.speculator)
        self._plan_samples(plan, now)
        self._plan_scores(plan)
        self._charge(plan.samples, 1)
        if self.static_wait is not None:
            plan.idle_rows = self._batch_rows - len(self.running)
        self.stalled = len(self.queue) > 0

    def on_launch(self, plan: SchedulerOutput) -> None:
        """Advance the counts of a launched step: the tokens it computes and the tokens it samples."""
        for sequence in plan.decodes:
            sequence.computed += 1
        for sequence, taken in plan.chunks:
            sequence.computed += taken
        for draft in plan.drafts:
            draft.sequence.computed += 1
        for sequence in (*plan.samples, *(draft.sequence for draft in plan.drafts)):
            sequence.total += 1
            sequence.pending += 1

    def reserve(self, sequences: list[Sequence], steps: int) -> int:
        """Allocate the blocks of `steps` tokens for each decoding sequence, if so many are empty: nothing is evicted.

        Returns for how many tokens, at most `steps`, each sequence has blocks. `on_run` frees those that stay unused.
        A snapshot of a state is left between two launches, so no sequence passes the position of its next one.
        """
        if self.states is not None:
            steps = min([steps, *(s.snapshots.next - s.computed for s in sequences)])
        needs = [max(0, self.tables.columns(s.computed + steps) - len(s.blocks[0])) for s in sequences]
        if sum(needs) * self.tables.count > self.pool.free.size:
            return min(s.capacity - s.computed for s in sequences)
        for sequence, need in zip(sequences, needs, strict=True):
            if need:
                self.tables.extend(sequence, sequence.computed + steps)
        return steps

    def on_run(self, plan: SchedulerOutput, tokens: Int32) -> None:
        """Count the steps of a run but its last one: their `tokens` [steps, decodes] are sampled and computed."""
        steps = len(tokens)
        self.rows.write(plan.decodes, tokens)
        self._charge(plan.decodes, steps)
        for sequence in plan.decodes:
            sequence.computed += steps
            sequence.confirmed += steps
            sequence.total += steps
            self.tables.trim(sequence, sequence.computed)

    def on_verified(self, draft: Draft, tokens: list[int]) -> None:
        """Count the accepted `tokens` of a draft: they are sampled and computed. The sample after them is not counted.

        Blocks beyond them are freed.
        """
        sequence, count = draft.sequence, len(tokens)
        known = sequence.num_known_tokens
        sequence.tokens[known : known + count] = tokens
        sequence.computed += count
        sequence.confirmed += count
        sequence.total += count
        self.tables.trim(sequence, sequence.computed)
        self.queue.counter.charge(sequence.request.tenant, OUTPUT_TOKEN * (1 + count))

    def on_computed(self, plan: SchedulerOutput, steps: int = 1) -> None:
        """Register the blocks that a computed step filled. Its sequences may have been preempted or ended since.

        With `steps` above 1 it was the last step of a run.
        """
        size = self.block_size
        for sequence in plan.decodes:
            sequence.confirmed += 1
            if sequence.confirmed % size < steps:
                self._register(sequence)
        for sequence, taken in plan.chunks:
            sequence.confirmed += taken
            self._register(sequence)
        for draft in plan.drafts:
            draft.sequence.confirmed += 1
            self._register(draft.sequence)

    def on_copied(self, plan: SchedulerOutput, now: float) -> None:
        """The snapshots of a computed step are there: the prefix cache finds them."""
        if self.states is not None:
            for snapshot in plan.snapshots:
                self.states.commit(snapshot.slot, snapshot.policy, now)

    def on_failed(self, plan: SchedulerOutput) -> None:
        """Free what a plan reserved, that is not or not completely computed. Its requests end."""
        if self.states is not None:
            for snapshot in plan.snapshots:
                self.states.cancel(snapshot.slot)
        plan.snapshots = []

    def jump_room(self, sequence: Sequence) -> int:
        """How many tokens may be appended to a running sequence without a sample (`extend`).

        Not more than blocks are free for: no sequence is preempted for them. Siblings that share a partial block copy
        it first, in a decode.
        """
        if not self.chunked or self.tables.tail_shared(sequence):
            return 0
        spare = max(0, self.pool.available // self.tables.count - len(self.running)) * self.block_size
        return min(sequence.limit, sequence.capacity + spare) - sequence.total

    def extend(self, sequence: Sequence, tokens: list[int]) -> None:
        """Append at most `jump_room` tokens to a running sequence, to compute in one chunk."""
        self.rows.append(sequence, tokens)
        sequence.total += len(tokens)
        if sequence.total > sequence.capacity:
            self.tables.extend(sequence, sequence.total)
        self.queue.counter.charge(sequence.request.tenant, OUTPUT_TOKEN * len(tokens))

    def finish(self, sequence: Sequence, now: float) -> None:
        """Free everything of a sequence in any state: running, queued, or waiting for its leader's prompt."""
        if self.speculator is not None and sequence.started:
            self.speculator.finished(sequence)
        if sequence.state is SequenceState.RUNNING:
            self.running.remove(sequence)
            self._free(sequence, now)
        elif sequence in self.queue:
            self.queue.remove(sequence)
        elif sequence.leader is not None:
            sequence.leader.forks.remove(sequence)
            sequence.leader = None
            self.pending_forks -= 1
        sequence.state = SequenceState.FINISHED
        self.drop_host(sequence)
        if sequence.forks:
            # This sequence does not compute the prompt any more, so the siblings are queued independently.
            self._release_forks(sequence, now)

    def drop_host(self, sequence: Sequence) -> None:
        """Free the host copy of a sequence."""
        self.host_free += self._host_cost(sequence.swapped_tokens)
        sequence.swapped_tokens = 0
        sequence.host = sequence.host_state = None

    def reset_cache(self) -> None:
        """Reset the prefix cache: later requests match nothing computed so far."""
        self.pool.reset()
        if self.states is not None:
            self.states.reset()
        if self.speculator is not None:
            self.speculator.reset()
        for sequence in self.running:
            sequence.no_cache, sequence.registered = True, 0
        for sequence in self.queue:
            sequence.no_cache = sequence.swapped_tokens > 0

    def evict_suspect(self, sequence: Sequence) -> None:
        """Remove a running sequence's blocks from the prefix cache, since their content is invalid."""
        self.tables.forget(sequence)
        if self.states is not None:
            self.states.forget(sequence.hashes)
        sequence.no_cache, sequence.registered = True, 0

    def unused_slots(self) -> int:
        """Number of unfilled token slots in the running sequences' blocks."""
        return sum([s.capacity - s.computed for s in self.running])

    def uncached(self) -> int:
        """Prompt tokens, waiting and running, that still have to be computed."""
        return self.queue.uncached + sum([s.num_missing_tokens for s in self.running if s.total - s.computed > 1])

    def check(self) -> None:
        """Accounting check: invariants of pool, rows and host blocks against the sequences. Raises `PoolError`."""
        self.tables.check(self.running)
        if self.states is not None:
            self.states.check()
        if self.rows.free != self.max_running - len(self.running):
            raise PoolError(f"{self.rows.free} of {self.max_running} rows are free, {len(self.running)} sequences run")
        kept = sum(self._host_cost(s.swapped_tokens) for s in (*self.queue, *self.running))
        if self.host_free != self.host_blocks - kept:
            raise PoolError(f"{self.host_free} of {self.host_blocks} host blocks are free, sequences keep {kept}")

    def _prompt_room(self, decodes: int) -> PromptRoom:
        """The prompt tokens that this step may compute."""
        left = self.budget - decodes
        if self.prefill_budget is None or not self.chunked:
            return PromptRoom(left)
        entering = len(self.running) - decodes + min(len(self.queue), self.max_running - len(self.running))
        return self.prefill_budget.room(left, decodes, entering)

    def _plan_decodes(self, plan: SchedulerOutput, now: float) -> None:
        tables = self.tables
        while True:
            # A sequence at its limit waits for its last token to be collected; it has nothing to compute.
            decodes = [s for s in self.running if s.total - s.computed == 1 and s.total < s.limit]
            needy = [s for s in decodes if s.computed >= s.capacity or (s.tail_shared and tables.tail_shared(s))]
            if len(needy) * tables.count <= tables.pool.available:
                break
            self._preempt(plan, now)
        for sequence in needy:
            self._grow(sequence, plan)
        if self.states is not None:
            for sequence in decodes:
                self._leave_snapshot(sequence, plan, self.states)
        if self.rows.adapted:
            decodes.sort(
                key=attrgetter("adapter")
            )  # rows of an adapter next to each other: kernels read it once for several
        plan.decodes = decodes

    def _grow(self, sequence: Sequence, plan: SchedulerOutput) -> None:
        """Give a decoding sequence the blocks of its next token: new ones, or private copies of shared ones."""
        if sequence.computed >= sequence.capacity:
            self.tables.extend(sequence, sequence.computed + 1)
        elif self.tables.tail_shared(sequence):  # else the siblings have already made their copies
            plan.block_copies += self.tables.copy_tail(sequence)
        sequence.tail_shared = False

    def _preempt(self, plan: SchedulerOutput, now: float) -> None:
        """Preempt the running sequence with the lowest level; ties by least lost work, then the newest."""
        victim = min(self.running, key=lambda s: (s.level, self._lost(s), -s.arrival))
        self.running.remove(victim)
        cost = self._host_cost(victim.computed)
        # What is pooled so far stays on the device, so the prompt is computed again as a whole.
        if 0 < cost <= self.host_free and victim.pooling not in _POOLED_WHOLE:
            self.host_free -= cost
            victim.swapped_tokens = victim.computed
            plan.swap_out.append((victim, self.tables.saved(victim, victim.computed), victim.row))
            self.swaps += 1
        else:
            victim.no_cache = False
        self._free(victim, now)
        victim.computed_before_preemption, victim.computed = victim.computed, 0
        self.preemptions += 1
        self._batch_rows -= 1
        plan.preempted.append(victim)
        self.add(victim, now)

    def _lost(self, sequence: Sequence) -> int:
        """Blocks to recompute after a preemption: those that neither the host nor the prefix cache keeps."""
        if sequence.pooling in _POOLED_WHOLE:
            return self.tables.columns(sequence.computed)
        if self._host_cost(sequence.computed) <= self.host_free:
            return 0
        kept = sequence.registered
        if self.states is not None:
            kept = min(kept, sequence.snapshots.latest // self.block_size)
        return sequence.computed // self.block_size - kept

    def _charge(self, sequences: list[Sequence], tokens: int) -> None:
        """Charge the tenants of these sequences for `tokens` output tokens of each."""
        for tenant, count in Counter([sequence.request.tenant for sequence in sequences]).items():
            self.queue.counter.charge(tenant, OUTPUT_TOKEN * tokens * count)

    def _host_cost(self, tokens: int) -> int:
        """Host blocks that a sequence with so many computed tokens takes."""
        return self.tables.kept(tokens) + self.host_state_blocks * (tokens > 0)

    def _next(self, now: float) -> Sequence | None:
        """The next sequence to start."""
        if self.static_wait is None:
            return self.queue.peek(now)
        if not self.running:
            self._batch.clear()
            self._batch_rows = 0
            head = self.queue.peek(now)
            if head is not None and self.delay(now) <= 0:
                self._batch.extend(next_batch(self.queue, head, self.max_running))
        while self._batch and (self._batch[0] not in self.queue or self._batch_rows >= self.max_running):
            self._batch.popleft()
        return self._batch[0] if self._batch else None

    def _admit(self, sequence: Sequence, left: PromptRoom, plan: SchedulerOutput, now: float) -> int:
        """Start a waiting sequence if rows, blocks and `left` allow. Returns its tokens in this step, else 0."""
        tables = self.tables
        if len(self.running) >= self.max_running or self.pool.available <= len(self.running) * tables.count:
            return 0
        # At least the last token is computed: its logits are needed for the next token.
        room = self._score_room(sequence, plan)
        if room == 0:
            return 0
        found, usable, hit = self._cached(sequence, sequence.total - 1, now)
        computed = max(usable * self.block_size, sequence.swapped_tokens)
        missing = sequence.total - computed
        take = min(missing, left.chunk(computed), room)
        if take == 0 or (missing > left.tokens and not self.chunked):
            return 0
        take = self._fitting(sequence, hit, computed, take)
        if take == 0:
            return 0
        tables.start(sequence, hit, computed, take, now)
        self.queue.remove(sequence)
        if sequence.swapped_tokens:
            saved = tables.saved(sequence, sequence.swapped_tokens, after=hit.columns)
            plan.swap_in.append((sequence, hit.columns, saved))
        if not sequence.started:
            self.queue.counter.choose(sequence.request.tenant, missing * PROMPT_TOKEN)
            sequence.first_start = now
        sequence.level = level(sequence, now)
        sequence.snapshots.shared = found * self.block_size
        if computed > sequence.swapped_tokens or not computed:
            sequence.snapshots.latest = computed
        self._start(sequence, computed)
        if self.states is None:
            return take
        if computed > sequence.swapped_tokens:
            snapshot = self.states.use(sequence.hashes[usable - 1], sequence.policy, now)
            plan.state_hits.append((snapshot, sequence.row))
        return self._cut(sequence, take)

    def _fitting(self, sequence: Sequence, hit: Hit, computed: int, take: int) -> int:
        """How many of `take` tokens a waiting sequence may compute first: all, or none if too few blocks are available.

        One block per running sequence and table stays reserved for growth, so that an admission does not cause a
        preemption; and so do those that the windows of running prompts need.
        """
        tables = self.tables
        reserved = len(self.running) * tables.count
        if tables.frees:
            reserved += sum([tables.promised(s) for s in self.running if s.total - s.computed > 1])
        if tables.needed(sequence, hit, computed) + reserved <= self.pool.available:
            return take
        # Alone, it may compute its windows in smaller chunks.
        return 0 if self.running or not tables.frees else tables.fitting(sequence, hit, computed, take)

    def _start(self, sequence: Sequence, computed: int) -> None:
        self.tables.set_capacity(sequence)
        sequence.computed = sequence.confirmed = computed
        if not sequence.started:
            sequence.started = True
            sequence.cached = min(computed, sequence.prompt_len)
            if sequence.index == 0:  # count a prompt once, for any number of answers
                self.hit_tokens += sequence.cached
        if self._leaves_snapshots:
            sequence.snapshots.next = self._next_snapshot(sequence)
        self.recomputed += max(0, sequence.computed_before_preemption - computed)
        sequence.computed_before_preemption = 0
        sequence.state = SequenceState.RUNNING
        self.rows.enter(sequence)
        self.running.append(sequence)
        self._batch_rows += 1

    def _plan_drafts(self, plan: SchedulerOutput, speculator: Speculator) -> None:
        """Let decoding sequences verify guesses. A step with prompts has none: it takes as long as prompts may take."""
        if not speculator.tries or plan.preempted or plan.chunks:
            speculator.passed()
            return
        forks = sum([len(sequence.forks) for sequence in plan.decodes])
        room = min(self.budget, self._max_samples - forks) - len(plan.decodes)
        able = [s for s in plan.decodes if not (s.forks or self.tables.tail_shared(s))]
        wanted = speculator.wanted(able, len(plan.decodes), room)
        fitting = [offer.shortened(self._drafted_room(offer.sequence, offer.most)) for offer in wanted]
        plan.drafts = speculator.drafts([offer for offer in fitting if offer.most], self.rows.table)
        for draft in plan.drafts:
            self.rows.append(draft.sequence, draft.tokens)
        drafted = {id(draft.sequence) for draft in plan.drafts}
        for offer in fitting:
            if id(offer.sequence) not in drafted:
                self.tables.trim(offer.sequence, offer.sequence.total)
        plan.decodes = [sequence for sequence in plan.decodes if id(sequence) not in drafted]

    def _drafted_room(self, sequence: Sequence, wanted: int) -> int:
        """For how many guessed tokens, at most `wanted`, a sequence has blocks.

        It takes empty ones, and at most one that the prefix cache has: it will need that soon, whatever is accepted.
        """
        tables, end = self.tables, sequence.computed + 1 + wanted
        need = tables.columns(end) - len(sequence.blocks[0])
        spare = self.pool.available - len(self.running) * tables.count
        if need > 0 and (need * tables.count <= self.pool.free.size or (need == 1 and spare >= tables.count)):
            tables.extend(sequence, end)
        return max(0, min(wanted, sequence.capacity - sequence.computed - 1))

    def _plan_samples(self, plan: SchedulerOutput, now: float) -> None:
        """Sample for sequences whose last token is computed in this step, and for the siblings that wait for them."""
        plan.samples = list(plan.decodes)
        plan.sample_rows = list(range(len(plan.decodes)))
        # The last token of a prompt counts as a decode.
        for row, sequence in enumerate(plan.decodes):
            if sequence.forks:
                self._fork(sequence, row, plan, now)
        end = len(plan.decodes)
        for sequence, taken in plan.chunks:
            end += taken
            if sequence.computed + taken < sequence.total:
                continue
            if sequence.pooling is not None:
                plan.pooled.append(sequence)
            else:
                plan.samples.append(sequence)
                plan.sample_rows.append(end - 1)
                if sequence.forks:
                    self._fork(sequence, end - 1, plan, now)

    def _plan_scores(self, plan: SchedulerOutput) -> None:
        """Score the tokens that follow those of the chunks, where log-probabilities of the prompt are requested."""
        query = len(plan.decodes)
        for sequence, taken in plan.chunks:
            scores = sequence.scores
            if scores is not None:
                first, count = scores.span(sequence.computed, sequence.computed + taken)
                if count:
                    plan.scores.append(ScoredChunk(sequence, scores, query + first - sequence.computed, first, count))
            query += taken

    def _score_room(self, sequence: Sequence, plan: SchedulerOutput) -> int:
        """How many tokens of this sequence the step may compute, if its prompt is scored."""
        if self.max_scores is None or sequence.scores is None or sequence.scores.complete:
            return self.budget
        return self.max_scores - sum(taken for s, taken in plan.chunks if s.scores is not None)

    def _matchable(self, sequence: Sequence) -> list[bytes]:
        """The hashes of blocks that may come from the prefix cache: not those whose tokens have to be scored.

        A mean is over the hidden states of all tokens, so its request uses no block of the cache; nor does one for the
        state of the first token.
        """
        if sequence.pooling in _POOLED_WHOLE:
            return []
        if sequence.scores is None or sequence.scores.complete:
            return sequence.hashes
        return sequence.hashes[: sequence.scores.reusable // self.block_size]

    def _cached(self, sequence: Sequence, tokens: int, now: float) -> tuple[int, int, Hit]:
        """How many blocks of its first `tokens` tokens the prefix cache has, after how many it can continue, and those.

        After all of them, but with state layers only after the last one with a snapshot. A host copy has what the
        windows of its sequence need, where the cache has what they needed earlier: so it is used alone.
        """
        hashes = self._matchable(sequence)[: tokens // self.block_size]
        hit = self.tables.match([] if self.tables.frees and sequence.swapped_tokens else hashes, now)
        found = hit.columns
        if self.states is None:
            return found, found, hit
        usable = self.states.match(sequence.hashes[:found], now)
        while (hit := self.tables.match(hashes[:usable], now)).columns < usable:
            usable = self.states.match(sequence.hashes[: hit.columns], now)
        # A host copy may continue further on than the last snapshot.
        swapped = min(found, sequence.swapped_tokens // self.block_size)
        return found, usable, hit if swapped <= usable else self.tables.match(hashes[:swapped], now)

    def _next_snapshot(self, sequence: Sequence) -> int:
        return next_snapshot(sequence.computed, sequence.total, sequence.snapshots, self.block_size)

    def _leave_snapshot(self, sequence: Sequence, plan: SchedulerOutput, states: StatePool) -> None:
        """Plan a copy of the state of a sequence that this step computes, if it has reached the position for one."""
        at, marks = sequence.computed, sequence.snapshots
        if at < marks.next:
            return
        # A prompt that is not chunked goes beyond it.
        if at == marks.next and not sequence.no_cache:
            self._hash_prompt(sequence)
            key = sequence.hashes[at // self.block_size - 1]
            if marks.answer is not None:
                states.replace(marks.answer)
            marks.answer = key if at >= sequence.prompt_len else None
            marks.latest = at
            slot = states.reserve(key)
            if slot is not None:
                plan.snapshots.append(Snapshot(sequence.row, slot, sequence.policy))
        marks.next = self._next_snapshot(sequence)

    def _cut(self, sequence: Sequence, take: int) -> int:
        """How many of `take` tokens a chunk computes: it ends where a snapshot is to be left."""
        return min(take, sequence.snapshots.next - sequence.computed) if self.chunked else take

    def _fork(self, leader: Sequence, row: int, plan: SchedulerOutput, now: float) -> None:
        """Start siblings on the leader's blocks. They have nothing to compute and only sample their own token."""
        while leader.forks and len(self.running) < self.max_running:
            fork = leader.forks.pop(0)
            fork.leader = None
            self.pending_forks -= 1
            self.tables.share(leader, fork)
            fork.hashes = list(leader.hashes)
            # The blocks are shared with the leader, which registers those of the prompt.
            fork.registered = 0 if leader.no_cache else fork.total // self.block_size
            fork.started = True
            fork.first_start = now
            fork.cached = leader.cached
            fork.level = leader.level
            fork.no_cache = leader.no_cache
            fork.tail_shared = leader.tail_shared = fork.total % self.block_size != 0
            fork.snapshots.latest = leader.snapshots.latest
            self._start(fork, fork.total)
            if self.states is not None:
                plan.state_forks.append((leader.row, fork.row))
            plan.samples.append(fork)
            plan.sample_rows.append(row)
        self._release_forks(leader, now)

    def _release_forks(self, leader: Sequence, now: float) -> None:
        """Queue siblings as independent sequences. The prefix cache still shares the full blocks of the prompt."""
        forks, leader.forks = leader.forks, []
        self.pending_forks -= len(forks)
        for fork in forks:
            fork.leader = None
            self.add(fork, now)

    def _free(self, sequence: Sequence, now: float) -> None:
        if self.speculator is not None:
            self.speculator.left(sequence)
        self.tables.free(sequence, now)
        sequence.tail_shared = False
        self.rows.leave(sequence)

    def _hash_prompt(self, sequence: Sequence) -> None:
        """Hash the full blocks of known tokens that have no hash yet."""
        size = self.block_size
        parent = sequence.hashes[-1] if sequence.hashes else sequence.root
        first = len(sequence.hashes) * size
        for start in range(first, sequence.num_known_tokens - size + 1, size):
            parent = block_hash(parent, sequence.tokens[start : start + size].tolist())
            sequence.hashes.append(parent)

    def _register(self, sequence: Sequence) -> None:
        if not self.caching or sequence.no_cache or sequence.state is not SequenceState.RUNNING:
            return
        full = sequence.confirmed // self.block_size
        if len(sequence.hashes) < full:
            self._hash_prompt(sequence)
        self.tables.register(sequence, full)
