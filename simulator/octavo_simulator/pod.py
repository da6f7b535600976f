"""One inference pod: chunked prefill, paged KV cache with prefix reuse, preemption by recompute. Pure, time passed in.

Steps are not simulated one by one. While no sequence ends, enters or runs out of blocks, k steps of n rows cost
`k*(base + row*n + context*C) + context*n*k*(k-1)/2`, and the pod jumps over them. An event in the middle of a jump cuts
it at the end of the current step, when a real engine would schedule again.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from math import inf, sqrt
from random import Random

from octavo_inference.core.prefill_budget import PrefillBudget, PromptRoom, pairs
from octavo_protocol.load import LoadReport
from octavo_simulator.chains import Chains
from octavo_simulator.job import SimulatedRequest
from octavo_simulator.steptime import PodProfile
from octavo_simulator.sums import Sums

# Steps between two draws of the noise; a jump does not cross a draw.
NOISE_STEPS = 64


class SimulatedPod:
    """A server process from readiness on. `longest_jump` of 1 simulates every step separately."""

    def __init__(self, profile: PodProfile, started: float, seed: int = 0, longest_jump: int = NOISE_STEPS) -> None:
        self.profile = profile
        self.started = started
        self.cold_start = 0.0
        self.draining = False
        self.until = inf
        self.requests = 0
        self.preemptions = 0
        self.recomputed = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.hit_tokens = 0
        self.sums = Sums(profile)
        self.chains = Chains(profile.blocks)
        self._random = Random(seed)
        self._longest = longest_jump
        self._clock = started
        self._planned = 0
        self._chunks: list[tuple[SimulatedRequest, int]] = []
        self._steps = 0
        self._factor = self._draw()
        self._pace = PrefillBudget(profile.slowdown) if profile.slowdown else None
        # Decoding: rows, the context tokens of the next step, and a heap of ends by step count. `_due`: for each step
        # number modulo the block size, the number of rows that need a new block.
        self._rows = 0
        self._context = 0
        self._ends: list[tuple[int, int, SimulatedRequest]] = []
        self._due = [0] * profile.block_size
        self._filling: list[SimulatedRequest] = []
        self._order: dict[int, SimulatedRequest] = {}
        self._waiting: deque[SimulatedRequest] = deque()
        self._waiting_tokens = 0
        self._uncached = 0
        self._sequence = 0
        self._answered: list[SimulatedRequest] = []

    @property
    def running(self) -> int:
        """The number of running sequences."""
        return len(self._order)

    @property
    def waiting(self) -> int:
        """The number of waiting sequences."""
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """True if no sequence runs or waits."""
        return not self._order and not self._waiting

    def submit(self, job: SimulatedRequest, now: float) -> bool:
        """Enqueue a request; False if the queue is full, or the request can never fit. Call `advance(now)` before."""
        request, profile = job.request, self.profile
        longest = -(-(request.prompt + request.output) // profile.block_size)
        if len(self._waiting) >= profile.max_waiting or longest > profile.blocks:
            return False
        job.total = request.prompt
        self.requests += 1
        blocked = bool(self._waiting)
        self._enqueue(job)
        if self._planned == 0:
            self._clock = now
            self._begin([])
        elif not blocked and self._planned > 1 and self._fits(job):
            self._settle(now)
            if self._planned > 1:
                self._plan_decodes(1)
        return True

    def advance(self, now: float) -> list[SimulatedRequest]:
        """Complete all steps that end by `now`; returns the ended requests in order."""
        ended: list[SimulatedRequest] = []
        while self.until <= now:
            self._complete(self._planned, self.until, ended)
            self._begin(ended)
        return ended

    def answered(self) -> list[SimulatedRequest]:
        """The requests that got their first token since the last call."""
        jobs, self._answered = self._answered, []
        return jobs

    def generated(self, job: SimulatedRequest) -> int:
        """Output tokens of a sequence so far."""
        return job.made + (self._steps - job.base + 1 - job.total if job.finish_at >= 0 else 0)

    def report(self, now: float) -> LoadReport:
        """The pod's load report. Call `advance(now)` before."""
        self._settle(now)
        self._sequence += 1
        profile, head = self.profile, self._waiting[0] if self._waiting else None
        return LoadReport(
            sequence=self._sequence,
            start_time=self.started - self.cold_start,
            model="simulated",
            block_size=profile.block_size,
            blocks_total=profile.blocks,
            blocks_pinned=self.chains.pinned,
            blocks_cached=self.chains.cached,
            running=len(self._order),
            waiting=len(self._waiting),
            waiting_tokens=self._waiting_tokens,
            uncached_prompt_tokens=self._uncached,
            oldest_wait=max(0.0, now - head.arrived) if head else 0.0,
            preemptions=self.preemptions,
            requests=self.requests,
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generation_tokens,
            prefix_hit_tokens=self.hit_tokens,
            max_running=profile.max_running,
            max_batched_tokens=profile.budget,
            max_waiting=profile.max_waiting,
            ready=True,
            draining=self.draining,
            cold_start=self.cold_start,
            recomputed=self.recomputed,
            steps=self.sums.steps(),
        )

    def forget_prefixes(self) -> None:
        """Evict every cached prefix that no sequence uses."""
        self.chains.clear()

    def check(self) -> None:
        """Check the counters against the sequences, for tests. Raises `AssertionError`."""
        size = self.profile.block_size
        private = 0
        for job in self._order.values():
            decoding = job.finish_at >= 0
            computed = self._steps - job.base if decoding else job.total
            private += -(-computed // size) - job.attached
        if private + self.chains.held != self.chains.pinned:
            raise AssertionError(f"{private} private and {self.chains.held} chain blocks, {self.chains.pinned} pinned")
        rows = sum(job.finish_at >= 0 for job in self._order.values())
        if rows != self._rows or rows != sum(self._due) or rows + len(self._filling) != len(self._order):
            raise AssertionError(f"{rows} rows decode, {self._rows} counted")
        context = sum(self._steps - job.base + 1 for job in self._order.values() if job.finish_at >= 0)
        if context != self._context or not 0 <= self.chains.pinned <= self.profile.blocks:
            raise AssertionError(f"context {self._context}, expected {context}")
        self.chains.check()

    # A step: plan and complete.

    def _begin(self, ended: list[SimulatedRequest]) -> None:
        """Plan the next step or jump."""
        while True:
            self._drop_late(ended)
            if not self._order and not self._waiting:
                self._planned, self.until = 0, inf
                return
            preempted = False
            while self._due[self._steps % self.profile.block_size] > self.chains.available:
                self._preempt()
                preempted = True
            self._plan_chunks(admit=not preempted)
            if self._chunks or self._rows:
                break
        if self._chunks:
            self._planned = 1
            self.until = self._clock + self._factor * self._mixed()
        else:
            # One step only: a preempted sequence may be admitted in the next one, a prompt that pauses goes on.
            paused = self._pace is not None and self._pace.pauses_prompts
            self._plan_decodes(1 if preempted or paused else self._longest)

    def _plan_decodes(self, most: int) -> None:
        """Plan a jump until a sequence ends, the pool is full, or the noise changes; at most `most` steps."""
        while self._ends[0][2].finish_at != self._ends[0][0]:
            heappop(self._ends)
        k = min(most, self._ends[0][0] - self._steps, NOISE_STEPS - self._steps % NOISE_STEPS)
        size, room = self.profile.block_size, self.chains.available
        if k > 1 and self._rows * ((k - 1) // size + 1) > room:
            taken, steps = 0, 0
            while steps < k:
                taken += self._due[(self._steps + steps) % size]
                if taken > room:
                    break
                steps += 1
            k = max(1, steps)
        if self._waiting and self._waiting[0].first == inf and k > 1:
            # When the first waiting request times out, the one behind it may fit.
            k = min(k, 1 + self._over_by(self._waiting[0].deadline, k))
        self._planned = k
        self.until = self._clock + self._seconds(k)

    def _seconds(self, k: int) -> float:
        """Seconds of the next k decode steps."""
        return self._factor * (k * self._decode() + self.profile.context * self._rows * (k * (k - 1) // 2))

    def _mixed(self) -> float:
        """Seconds of the planned step with prefill chunks, without noise."""
        return self.profile.mixed(self._rows, *self._prefill()) + self.profile.context * self._context

    def _prefill(self) -> tuple[int, int]:
        """Prompt tokens of the planned step, and pairs of them and a token before."""
        return sum(take for _, take in self._chunks), sum(pairs(take, job.computed) for job, take in self._chunks)

    def _decode(self) -> float:
        """Seconds of the next decode-only step, without noise."""
        return self.profile.linear(self._rows) + self.profile.context * self._context

    def _settle(self, now: float) -> None:
        """Complete the steps of the jump that end by `now`."""
        if self._planned < 2:
            return
        k = self._over_by(now, self._planned - 1)
        if k:
            self._complete(k, self._clock + self._seconds(k), [])
            self._planned -= k

    def _over_by(self, now: float, most: int) -> int:
        """The number of decode steps that end by `now`, at most `most`."""
        one = self._decode()
        left, bend = (now - self._clock) / self._factor, self.profile.context * self._rows
        if bend > 0:
            b = one - bend / 2
            k = int(min(most, (sqrt(b * b + 2 * bend * max(0.0, left)) - b) / bend))
        else:
            k = int(min(most, left / one))
        k = min(max(k, 0), most)
        clock, factor = self._clock, self._factor
        # Exact correction by the formula of `_seconds`, as the root above is rounded.
        while k < most and clock + factor * ((k + 1) * one + bend * ((k + 1) * k // 2)) <= now:
            k += 1
        while k and clock + factor * (k * one + bend * (k * (k - 1) // 2)) > now:
            k -= 1
        return k

    def _complete(self, k: int, at: float, ended: list[SimulatedRequest]) -> None:
        """Complete `k` steps of the plan at time `at`."""
        n, size = self._rows, self.profile.block_size
        if self._chunks:
            seconds, (tokens, earlier) = at - self._clock, self._prefill()
            self.sums.mixed(seconds, tokens, n, self._context)
            if self._pace is not None:
                self._pace.observe(seconds, n, tokens, earlier)
        else:
            self.sums.decodes(self._factor, k, n, self._context)
            if self._pace is not None:
                self._pace.observe((at - self._clock) / k, n, 0, steps=k)
        if n:
            first, due = self._steps % size, self._due
            if k == 1:
                blocks = due[first]
            else:
                whole, part = divmod(k, size)
                blocks = whole * n + sum(due[first : first + part]) + sum(due[: max(0, first + part - size)])
            if blocks:
                self.chains.take(blocks)
            self._context += k * n
            self.generation_tokens += k * n
        self._clock = at
        self._steps += k
        if self._steps % NOISE_STEPS == 0:
            self._factor = self._draw()
        if n:
            while self._ends and self._ends[0][0] <= self._steps:
                end, _, job = heappop(self._ends)
                if job.finish_at == end:
                    self._leave_decode(job)
                    self._finish(job, ended)
        chunks, self._chunks = self._chunks, []
        for job, take in chunks:
            self._advance_prefill(job, take, ended)

    # Sequences: enqueue, admit, finish.

    def _enqueue(self, job: SimulatedRequest, *, first: bool = False) -> None:
        hits, _ = self.chains.match(job.request.prefix, self._reusable(job))
        job.uncached = max(1, job.total - hits * self.profile.block_size)
        self._uncached += job.uncached
        self._waiting_tokens += job.request.prompt
        (self._waiting.appendleft if first else self._waiting.append)(job)

    def _dequeue(self) -> SimulatedRequest:
        job = self._waiting.popleft()
        self._uncached -= job.uncached
        self._waiting_tokens -= job.request.prompt
        return job

    def _reusable(self, job: SimulatedRequest) -> int:
        """Blocks that it may share; the last token is always computed, as its logits are needed for the next one."""
        return min(job.request.shared, job.total - 1) // self.profile.block_size

    def _drop_late(self, ended: list[SimulatedRequest]) -> None:
        """Time out waiting requests whose deadline passed before they started."""
        while self._waiting and self._waiting[0].deadline <= self._clock and self._waiting[0].first == inf:
            job = self._dequeue()
            job.outcome, job.ended = "timeout", self._clock
            ended.append(job)

    def _fits(self, job: SimulatedRequest) -> bool:
        """True if a row and the blocks are available; each running sequence keeps one spare block for its growth."""
        growth, available = len(self._order), self.chains.available
        if growth >= self.profile.max_running:
            return False
        hits, idle = self.chains.match(job.request.prefix, self._reusable(job))
        need = -(-job.total // self.profile.block_size) - hits
        return need + idle + growth <= available

    def _plan_chunks(self, *, admit: bool) -> None:
        """Distribute the step's prefill tokens: first to sequences in prefill, then to waiting ones."""
        room = PromptRoom(self.profile.budget - self._rows)
        if self._pace is not None:
            free = self.profile.max_running - len(self._order)
            room = self._pace.room(room.tokens, self._rows, len(self._filling) + min(len(self._waiting), free))
        for job in self._filling:
            if room.tokens <= 0:
                return
            self._take(job, room)
        while admit and self._waiting and self._fits(self._waiting[0]):
            head = self._waiting[0]
            if not room.chunk(
                self.chains.match(head.request.prefix, self._reusable(head))[0] * self.profile.block_size
            ):
                return
            self._start(self._dequeue())
            self._take(head, room)

    def _take(self, job: SimulatedRequest, room: PromptRoom) -> None:
        """Plan a sequence's chunk, if tokens are left for it."""
        take = min(job.total - job.computed, room.chunk(job.computed))
        if take:
            self._chunks.append((job, take))
            room.take(take, job.computed)

    def _start(self, job: SimulatedRequest) -> None:
        size, prefix = self.profile.block_size, job.request.prefix
        hits, _ = self.chains.match(prefix, self._reusable(job))
        if hits:
            self.chains.acquire(prefix, hits)
        self.chains.take(-(-job.total // size) - hits)
        job.attached, job.computed = hits, hits * size
        self._uncached += job.total - job.computed
        if job.first == inf:
            job.hit = min(job.computed, job.request.prompt)
            self.hit_tokens += job.hit
            self.prompt_tokens += job.request.prompt
        again = max(0, job.reached - job.computed)
        self.recomputed += again
        job.recomputed += again
        self._order[job.number] = job
        self._filling.append(job)

    def _advance_prefill(self, job: SimulatedRequest, take: int, ended: list[SimulatedRequest]) -> None:
        job.computed += take
        self._uncached -= take
        if job.computed < job.total:
            return
        self._filling.remove(job)
        size, request = self.profile.block_size, job.request
        job.attached = self.chains.extend(request.prefix, job.attached, min(request.shared, job.computed) // size)
        job.made += 1
        self.generation_tokens += 1
        job.total += 1
        if job.first == inf:
            job.first = self._clock
            self._answered.append(job)
        if job.made >= request.output:
            self._finish(job, ended)
            return
        job.base = self._steps - job.computed
        job.finish_at = self._steps + request.output - job.made
        self._rows += 1
        self._context += job.computed + 1
        self._due[job.base % size] += 1
        heappush(self._ends, (job.finish_at, job.number, job))

    def _leave_decode(self, job: SimulatedRequest) -> None:
        job.computed = self._steps - job.base
        job.made += job.computed + 1 - job.total
        job.total = job.computed + 1
        job.finish_at = -1
        self._rows -= 1
        self._context -= job.total
        self._due[job.base % self.profile.block_size] -= 1

    def _finish(self, job: SimulatedRequest, ended: list[SimulatedRequest]) -> None:
        request, size = job.request, self.profile.block_size
        if request.turn:
            job.attached = self.chains.extend(request.prefix, job.attached, job.computed // size)
        self._free(job, job.computed)
        job.outcome, job.ended = "finished", self._clock
        ended.append(job)

    def _preempt(self) -> None:
        """Preempt the sequence that started last; it will be recomputed."""
        job = self._order[next(reversed(self._order))]
        if job.finish_at >= 0:
            self._leave_decode(job)
            held = job.computed
        else:
            self._filling.remove(job)
            self._uncached -= job.total - job.computed
            held = job.total
        self._free(job, held)
        job.reached = max(job.reached, job.computed)
        self.preemptions += 1
        self._enqueue(job, first=True)

    def _free(self, job: SimulatedRequest, held: int) -> None:
        """Release the blocks of `held` tokens."""
        own = -(-held // self.profile.block_size) - job.attached
        self.chains.release(job.request.prefix, job.attached, own)
        job.attached = 0
        del self._order[job.number]

    def _draw(self) -> float:
        noise = self.profile.noise
        return max(0.5, self._random.gauss(1.0, noise)) if noise else 1.0
