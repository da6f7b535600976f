"""Which pod has how much of a prompt cached, by text and by the engine's hashes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_gateway.routing.prefix_chain import COARSE, FINE, FINES, chain, reach, root
from octavo_gateway.routing.prefix_index import ASSUMED, UNSETTLED, DeltaError, PrefixIndex
from octavo_protocol.hashing import block_hashes
from octavo_protocol.load import CacheDelta
from octavo_protocol.prompt import describe

ROOT = root("m", "tenant")
BLOCK = 16
BLOCKS = 10_000


def text(size, seed=0):
    return random.Random(seed).randbytes(size)


def hashes(data):
    """Block hashes of an engine with one token for every four bytes."""
    return block_hashes(
        b"", [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data) // 4 * 4, 4)], BLOCK
    )


class Pods:
    """An index, and pods that answer and report as pods do."""

    def __init__(self, index=None):
        self.index = PrefixIndex() if index is None else index
        self.held = {}
        self.now = 0.0

    def serve(self, pod, data):
        """Send a prompt, compute it, answer."""
        keys = chain(ROOT, data)
        self.index.sent(pod, keys)
        self.compute(pod, data)
        self.now += 1
        self.index.learn(pod, keys, len(data), describe(len(data) // 4, BLOCK, hashes(data)))
        self.index.finished(pod, keys, self.now)

    def compute(self, pod, data):
        """What any gateway's request does to a pod's cache."""
        self.held.setdefault(pod, set()).update(h[:8] for h in hashes(data))

    def report(self, pod, *, reset=True, added=None, removed=()):
        added = self.held.get(pod, set()) if added is None else added
        after = self.index.sequence(pod)
        self.now += 1
        delta = CacheDelta(sequence=after + 1, reset=reset, added=b"".join(added), removed=b"".join(removed))
        self.index.reported(pod, delta, after, BLOCKS, self.now)

    def match(self, data, *pods):
        """Share of the prompt that each pod holds."""
        keys = chain(ROOT, data)
        return [reach(found) / reach(len(keys)) for found in self.index.match(keys, pods)]


def test_texts_that_begin_alike_have_keys_that_begin_alike():
    shared = text(50_000)
    one, other = chain(ROOT, shared + text(3000, 1)), chain(ROOT, shared + text(9000, 2))
    equal = sum(a == b for a, b in zip(one, other, strict=False))
    assert one[:equal] == other[:equal]
    assert 0 <= len(shared) - reach(equal) < COARSE
    assert not set(one[equal:]) & set(other)
    assert not set(one) & set(chain(root("m", "other tenant"), shared))


@pytest.mark.parametrize("size", [0, 1, FINE - 1, FINE, FINE * FINES + COARSE - 1, FINE * FINES + COARSE, 100_000])
def test_keys_stand_for_all_but_the_last_piece(size):
    keys = chain(ROOT, text(size))
    assert 0 <= size - reach(len(keys)) < (COARSE if len(keys) >= FINES else FINE)


def test_names_are_told_apart():
    assert len({root("a", "b"), root("ab", ""), root("", "ab"), root("a", "b", "")}) == 4


def test_what_was_sent_is_assumed_until_the_pod_reports():
    pods, prompt = Pods(), text(4000)
    pods.index.sent("a", chain(ROOT, prompt))
    assert pods.match(prompt, "a", "b") == [1, 0]
    assert pods.match(prompt + text(4000, 1), "a")[0] == pytest.approx(0.5, abs=0.02)
    assert pods.match(text(4000, 2), "a") == [0]
    # Not answered yet: the report cannot have it.
    pods.report("a", added=())
    assert pods.match(prompt, "a") == [1]


def test_a_report_confirms_or_denies_what_was_answered():
    pods, prompt = Pods(), text(4000)
    pods.serve("a", prompt)
    pods.serve("b", prompt)
    pods.report("a")
    pods.report("b", added=())
    assert pods.match(prompt, "a", "b") == [1, 0]


def test_a_report_from_before_the_answer_settles_nothing():
    pods, prompt = Pods(), text(4000)
    pods.serve("a", prompt)
    pods.index.reported("a", CacheDelta(sequence=1, reset=True), 0, BLOCKS, pods.now - 0.5)
    assert pods.match(prompt, "a") == [1]


def test_what_another_gateway_sent_is_known_by_the_engines_hashes():
    pods, prompt = Pods(), text(6000)
    pods.serve("a", prompt)
    pods.compute("b", prompt[:3000] + text(1000, 1))
    pods.report("b")
    assert pods.match(prompt, "b")[0] == pytest.approx(0.5, abs=0.06)
    # The other way round: first the report, then what stands behind it.
    later = text(6000, 5)
    pods.compute("b", later)
    pods.report("b")
    assert pods.match(later, "b") == [0]
    pods.serve("a", later)
    assert pods.match(later, "b")[0] == 1


def test_what_the_pod_dropped_is_known():
    pods, prompt = Pods(), text(6000)
    pods.serve("a", prompt)
    pods.report("a")
    keys = [h[:8] for h in hashes(prompt)]
    pods.report("a", reset=False, added=(), removed=keys[len(keys) // 2 :])
    assert pods.match(prompt, "a")[0] == pytest.approx(0.5, abs=0.06)
    pods.report("a", reset=False, added=keys[len(keys) // 2 :])
    assert pods.match(prompt, "a") == [1]
    pods.report("a", added=())
    assert pods.match(prompt, "a") == [0]


def test_long_prompts_are_known_by_a_choice_of_their_blocks():
    pods, shared = Pods(), text(40_000)
    pods.serve("a", shared + text(20_000, 1))
    pods.serve("b", shared + text(30_000, 2))
    pods.report("a")
    pods.report("b")
    prompt = shared + text(10_000, 3)
    assert pods.match(prompt, "a", "b") == [pytest.approx(0.8, abs=0.05)] * 2


def test_pods_that_share_no_prefixes_hold_nothing():
    pods, prompt = Pods(), text(4000)
    keys = chain(ROOT, prompt)
    pods.index.sent("a", keys)
    pods.index.learn("a", keys, len(prompt), describe(1000, BLOCK, []))
    assert pods.match(prompt, "a") == [0]


def test_a_pod_that_did_not_take_it_or_is_gone_holds_nothing():
    pods, prompt = Pods(), text(4000)
    pods.index.sent("a", chain(ROOT, prompt))
    pods.index.unsent("a", chain(ROOT, prompt))
    assert pods.match(prompt, "a") == [0]
    pods.serve("a", prompt)
    pods.report("a")
    pods.index.forget("a")
    assert (pods.match(prompt, "a"), pods.index.sequence("a"), pods.index.hashes) == ([0], 0, 0)


def test_a_difference_to_something_else_is_left_out():
    """Two answers that overtake each other, or a new process behind the old address."""
    pods, prompt = Pods(), text(4000)
    pods.serve("a", prompt)
    pods.report("a")
    gone = CacheDelta(sequence=9, removed=b"".join(h[:8] for h in hashes(prompt)))
    pods.index.reported("a", gone, 7, BLOCKS, 99.0)
    assert (pods.match(prompt, "a"), pods.index.sequence("a")) == ([1], 1)


@pytest.mark.parametrize(
    "delta",
    [
        CacheDelta(sequence=-1, reset=True),
        CacheDelta(sequence=2, reset=True, added=b"12345678" + b"abcdefgh"),
        CacheDelta(sequence=2, reset=False, added=b"12345678" + b"abcdefgh"),
    ],
)
def test_what_cannot_be_is_refused_and_asked_anew(delta):
    index = PrefixIndex()
    index.reported("a", CacheDelta(sequence=1, reset=True), 0, 1, 0.0)
    with pytest.raises(DeltaError, match="cache: "):
        index.reported("a", delta, 1, 1, 1.0)
    assert index.sequence("a") == 0


def test_the_start_of_a_prompt_outlives_its_end():
    index = PrefixIndex(texts=200)
    keys = chain(ROOT, text(90 * FINE))
    index.sent("a", chain(ROOT, text(60 * FINE, 99)))
    index.sent("a", keys)
    found = []
    for seed in range(1, 9):
        index.sent("a", chain(ROOT, text(20 * FINE, seed)))
        found.append(index.match(keys, ["a"])[0])
    assert found[0] == 90
    assert any(0 < depth < 90 for depth in found)
    assert found[-1] == 0


def test_over_the_bound_matches_get_coarser_and_no_shorter():
    pods, prompts = Pods(PrefixIndex(hashes=1500)), [text(40_000, seed) for seed in range(12)]
    for number, prompt in enumerate(prompts):
        pods.serve(f"p{number}", prompt)
        pods.report(f"p{number}")
    assert pods.index.stride >= 4
    assert 300 < pods.index.hashes <= 1500
    for number, prompt in enumerate(prompts):
        assert pods.match(prompt, f"p{number}")[0] > 0.8
    for number in range(12):
        pods.index.forget(f"p{number}")
    assert pods.index.stride == 1


def test_a_pod_that_never_reports_costs_little():
    pods = Pods()
    for seed in range(80):
        pods.serve("a", text(40_000, seed))
    assert sum(len(keys) for _, keys in pods.index._pods["a"].unsettled) <= UNSETTLED


def test_what_one_request_was_not_taken_for_another_still_has_there():
    pods, shared = Pods(), text(4000)
    pods.index.sent("a", chain(ROOT, shared))
    pods.index.unsent("a", pods.index.sent("a", chain(ROOT, shared + text(4000, 1))))
    assert pods.match(shared, "a") == [1]
    assert pods.match(shared + text(4000, 1), "a")[0] == pytest.approx(0.5, abs=0.02)


@settings(max_examples=scaled(25), deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 20_000)), max_size=40))
def test_memory_is_bounded_whatever_comes(events):
    index = PrefixIndex(texts=100, hashes=80)
    pods = Pods(index)
    for pod, seed, size in events:
        pods.serve(pod, text(size, seed))
        pods.report(pod)
    assert len(index) <= 100
    assert index.hashes <= 80
    assert index.assumed <= 3 * ASSUMED


@settings(max_examples=scaled(40), deadline=None)
@given(st.data())
def test_a_match_is_never_longer_than_what_the_pod_holds_once_it_has_reported(data):
    """Prefixes of one text on two pods; what is predicted is at most a piece and a named block away from the truth."""
    whole = text(24_000)
    pods = Pods()
    for pod in "ab":
        pods.serve(pod, whole[: data.draw(st.integers(0, len(whole)))])
        kept = data.draw(st.integers(0, len(whole)))
        pods.held[pod] = {h[:8] for h in hashes(whole[:kept])} & pods.held[pod]
        pods.report(pod)
    for pod, found in zip("ab", pods.index.match(chain(ROOT, whole), ["a", "b"]), strict=True):
        truth = len(pods.held[pod]) * BLOCK * 4
        slack = 24_000 / 64 + 2 * FINE + BLOCK * 4
        assert reach(found) <= truth + slack
