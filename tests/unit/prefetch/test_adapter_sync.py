"""A pod's adapters follow the list: downloaded once, listed when complete, removed when nothing reads them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from octavo_inference.download.adapter_sync import (
    FIRST_SECONDS,
    KEPT_SECONDS,
    LIST,
    OVERHEAD_BYTES,
    PARALLEL,
    AdapterSync,
    key,
)
from octavo_inference.download.transfer import PrefetchError
from octavo_protocol.adapters import ListedAdapter, WantedAdapter, decode_list, encode_wanted

SQL, CHAT = "hf://org/sql@c0ffee", "hf://org/chat@beef"


class Steps(Executor):
    """Runs what was submitted when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: fn(*args, **kwargs)))
        return future

    def run(self, most: int = 100) -> bool:
        """Run the first ones; whether there were any."""
        now, self.waiting = self.waiting[:most], self.waiting[most:]
        for future, call in now:
            try:
                future.set_result(call())
            except Exception as error:  # noqa: BLE001 - as an executor does
                future.set_exception(error)
        return bool(now)


class Pod:
    """A pod with a hub whose downloads can fail."""

    def __init__(self, folder: Path) -> None:
        self.wanted, self.folder = folder / "wanted.json", folder / "adapters"
        self.folder.mkdir()
        self.broken: dict[str, Exception] = {}
        self.downloads: list[str] = []
        self.said: list[str] = []
        self.now = 1000.0
        self.executor = Steps()
        self.free, self.limit, self.size = 1 << 40, 0, 0
        self.sync = self.started()

    def started(self) -> AdapterSync:
        return AdapterSync(
            self.wanted,
            self.folder,
            self.download,
            self.executor,
            self.said.append,
            room=lambda: self.free,
            limit=self.limit,
            started=self.now,
        )

    def download(self, source: str, folder: Path) -> None:
        self.downloads.append(source)
        if source in self.broken:
            raise self.broken[source]
        folder.mkdir()
        (folder / "adapter_config.json").write_text(source)
        (folder / "adapter_model.safetensors").write_bytes(bytes(self.size))

    def want(self, **sources: str) -> None:
        self.wanted.write_bytes(encode_wanted([WantedAdapter(name=n, source=s) for n, s in sources.items()]))

    def settle(self, seconds: float = 0.0) -> list[ListedAdapter]:
        """Steps until nothing is being downloaded."""
        self.now += seconds
        self.sync.step(self.now)
        while self.executor.run():
            self.sync.step(self.now)
        return self.list

    @property
    def list(self) -> list[ListedAdapter]:
        return decode_list((self.folder / LIST).read_bytes())

    def path(self, source: str) -> str:
        return str(self.folder / key(source))


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


def test_adapters_are_listed_when_they_are_complete(pod: Pod) -> None:
    assert pod.settle() == []
    pod.want(sql=SQL, chat=CHAT)
    pod.sync.step(pod.now)
    pod.executor.run(1)
    pod.sync.step(pod.now)
    assert pod.list == [ListedAdapter(name="sql", source=SQL, path=pod.path(SQL))]
    assert [each.name for each in pod.settle()] == ["sql", "chat"]
    assert (Path(pod.path(CHAT)) / "adapter_config.json").read_text() == CHAT
    pod.settle(3600)
    assert pod.downloads == [SQL, CHAT]


def test_a_name_keeps_its_old_source_until_the_new_one_is_complete(pod: Pod) -> None:
    pod.want(sql=SQL)
    pod.settle()
    pod.want(sql=CHAT)
    for seconds in (0, 2 * KEPT_SECONDS):
        pod.sync.step(pod.now + seconds)
        assert pod.list == [ListedAdapter(name="sql", source=SQL, path=pod.path(SQL))]
    pod.executor.waiting.clear()
    pod.sync = pod.started()
    assert pod.settle() == [ListedAdapter(name="sql", source=CHAT, path=pod.path(CHAT))]
    pod.settle()
    pod.settle(KEPT_SECONDS)
    assert not Path(pod.path(SQL)).exists()


def test_the_first_list_has_all_adapters_unless_some_take_long(pod: Pod) -> None:
    pod.want(sql=SQL, chat=CHAT)
    for seconds in (0.0, FIRST_SECONDS - 1):
        pod.sync.step(pod.now + seconds)
        pod.executor.run(1 if seconds == 0.0 else 0)
        assert not (pod.folder / LIST).exists(), "a server that starts waits for it"
    pod.sync.step(pod.now + FIRST_SECONDS)
    assert [each.name for each in pod.list] == ["sql"]


def test_few_are_downloaded_at_the_same_time_each_once(pod: Pod) -> None:
    pod.want(**{f"a{number}": f"hf://org/{number}" for number in range(PARALLEL + 2)})
    for _ in range(3):
        pod.sync.step(pod.now)
    assert len(pod.executor.waiting) == PARALLEL
    assert len(pod.settle()) == PARALLEL + 2
    assert len(pod.downloads) == PARALLEL + 2


def test_what_is_not_wanted_any_more_is_not_removed_while_it_is_downloaded(pod: Pod) -> None:
    pod.want(sql=SQL)
    pod.sync.step(pod.now)
    (pod.folder / f".{key(SQL)}").mkdir()
    pod.want()
    for _ in range(3):
        pod.now += KEPT_SECONDS
        pod.sync.step(pod.now)
    assert (pod.folder / f".{key(SQL)}").exists()


def test_a_failed_download_is_tried_again_and_stops_no_other(pod: Pod) -> None:
    pod.broken[SQL] = PrefetchError("org/sql: the hub refuses access (401)")
    pod.broken[CHAT] = ValueError("a bug")
    pod.want(sql=SQL, chat=CHAT, other=CHAT + "1")
    listed = pod.settle()
    assert listed[0] == ListedAdapter(name="sql", source=SQL, failure="org/sql: the hub refuses access (401)")
    assert listed[1].failure == "ValueError: a bug"
    assert listed[2].path
    pod.settle(9)
    assert pod.downloads.count(SQL) == 1
    pod.settle(1)
    assert pod.downloads.count(SQL) == 2
    pod.settle(19)
    assert pod.downloads.count(SQL) == 2, "the delay doubles"
    pod.broken.clear()
    assert not any(each.failure for each in pod.settle(1))


def test_what_is_not_wanted_leaves_the_list_at_once_and_the_disk_later(pod: Pod) -> None:
    pod.want(sql=SQL, chat=CHAT)
    pod.settle()
    pod.want(chat=CHAT)
    assert [each.name for each in pod.settle()] == ["chat"]
    pod.settle(KEPT_SECONDS - 1)
    assert Path(pod.path(SQL)).exists(), "a request may still read it"
    pod.settle(1)
    assert not Path(pod.path(SQL)).exists()
    assert Path(pod.path(CHAT)).exists()


def test_one_that_comes_back_in_time_is_not_downloaded_again(pod: Pod) -> None:
    pod.want(sql=SQL)
    pod.settle()
    pod.want()
    pod.settle(KEPT_SECONDS - 1)
    pod.want(sql=SQL)
    pod.settle(KEPT_SECONDS)
    assert pod.downloads == [SQL]


def test_a_name_with_another_source_has_another_folder(pod: Pod) -> None:
    pod.want(sql=SQL)
    pod.settle()
    pod.want(sql=CHAT)
    (listed,) = pod.settle()
    assert (listed.name, listed.source, listed.path) == ("sql", CHAT, pod.path(CHAT))
    assert pod.path(CHAT) != pod.path(SQL)


def test_two_names_of_one_source_share_a_folder(pod: Pod) -> None:
    pod.want(sql=SQL, query=SQL)
    assert [each.path for each in pod.settle()] == [pod.path(SQL)] * 2
    assert pod.downloads == [SQL]


def test_a_restarted_container_goes_on_with_what_is_there(pod: Pod) -> None:
    pod.want(sql=SQL)
    pod.settle()
    (pod.folder / f".{key(CHAT)}").mkdir()  # an interrupted download of one that is not wanted any more
    pod.sync = pod.started()
    assert [each.path for each in pod.settle()] == [pod.path(SQL)]
    pod.settle(KEPT_SECONDS)
    assert not (pod.folder / f".{key(CHAT)}").exists()
    assert pod.downloads == [SQL]


def test_a_refused_adapter_is_listed_with_the_reason_and_not_downloaded(pod: Pod) -> None:
    pod.wanted.write_bytes(encode_wanted([WantedAdapter(name="sql", source=SQL, failure="a rank of 300")]))
    assert pod.settle() == [ListedAdapter(name="sql", source=SQL, failure="a rank of 300")]
    assert pod.downloads == []


def test_a_list_that_cannot_be_read_changes_nothing(pod: Pod) -> None:
    pod.want(sql=SQL)
    before = pod.settle()
    pod.wanted.write_bytes(b"{")
    assert pod.settle(3600) == before
    assert Path(pod.path(SQL)).exists()
    pod.wanted.unlink()
    assert pod.settle(3600) == before


def large(source: str, size: int = 100_000_000) -> WantedAdapter:
    return WantedAdapter(name=source.partition("@")[0].rpartition("/")[2], source=source, file_bytes=size)


def test_one_that_does_not_fit_says_so_and_is_downloaded_once_it_does(pod: Pod) -> None:
    pod.free = 50_000_000
    pod.wanted.write_bytes(encode_wanted([large(SQL), large(CHAT, 1000)]))
    pod.settle()
    assert [each.path for each in pod.settle()] == ["", pod.path(CHAT)]
    assert pod.list[0].failure == ("it takes 101 MB, and the pod has room for 50 MB of adapters: remove other ones")
    assert pod.downloads == [CHAT]
    pod.free = 200_000_000
    assert [each.path for each in pod.settle(10)] == [pod.path(SQL), pod.path(CHAT)]


def test_the_adapters_of_a_pod_have_a_limit(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    pod.limit, pod.size = OVERHEAD_BYTES + 4200, 2000
    pod.sync = pod.started()
    pod.wanted.write_bytes(encode_wanted([large(f"hf://org/a{number}", 2000) for number in range(4)]))
    for _ in range(4):
        pod.sync.step(pod.now)
        pod.executor.run()
    assert [bool(each.path) for each in pod.list] == [True, True, False, False]
    assert pod.list[2].failure.startswith("it takes 1 MB, and the pod has room for")


def test_downloads_that_run_count_with_what_they_still_need(pod: Pod) -> None:
    pod.free = 150_000_000
    pod.wanted.write_bytes(encode_wanted([large(SQL), large(CHAT)]))
    for _ in range(3):
        pod.sync.step(pod.now)
    assert len(pod.executor.waiting) == 1, "the other one waits for what this one really takes"
    pod.settle()
    assert [each.path for each in pod.settle()] == [pod.path(SQL), pod.path(CHAT)]


def test_what_is_not_wanted_is_removed_before_more_is_downloaded(pod: Pod) -> None:
    pod.wanted.write_bytes(encode_wanted([large(SQL)]))
    pod.settle()
    pod.free = 0
    pod.wanted.write_bytes(encode_wanted([large(CHAT)]))
    for seconds in (0.0, KEPT_SECONDS - 1):
        assert pod.settle(seconds) == [], "neither a failure nor a download while room is being made"
    pod.free = 200_000_000
    pod.settle(1)
    assert not Path(pod.path(SQL)).exists()
    assert [each.path for each in pod.list] == [pod.path(CHAT)]


def test_one_on_a_volume_is_listed_where_it_is(pod: Pod) -> None:
    there = WantedAdapter(name="sql", source="pvc://disk/sql", path="/model/sql", file_bytes=1000)
    pod.wanted.write_bytes(encode_wanted([there]))
    assert pod.settle() == [ListedAdapter(name="sql", source="pvc://disk/sql", path="/model/sql")]
    assert pod.downloads == []
    # Another source of the name takes its place when it is complete.
    pod.want(sql=SQL)
    pod.sync.step(pod.now)
    assert pod.list[0].path == "/model/sql"
    assert pod.settle()[0].path == pod.path(SQL)
