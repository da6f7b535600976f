"""The engine's process and the two processes' conversation."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import subprocess
import sys
import threading

import msgspec
import pytest
from tests.support.waiting import eventually_async
from tests.unit.engine.test_adapters import Server as AdapterServer
from tests.unit.engine.test_guided import Compiler, grammar
from tests.unit.engine.test_guided import make as make_guided

from octavo_inference.common.errors import ModelError
from octavo_inference.common.framing import FrameReader, encode_frame
from octavo_inference.common.timeline import Timeline
from octavo_inference.core.request import Abort, Guidance, OfferAdapter, Output, Request, SamplingParams
from octavo_inference.engine import ipc, process
from octavo_inference.engine.client import ProcessClient
from octavo_inference.engine.ipc import EngineInfo, EngineStep, Ready, Start, decode_from_engine
from octavo_inference.engine.output_router import LOST, EngineDiedError
from octavo_inference.engine.process import Channel
from octavo_protocol.server_settings import ServerSettings

INFO = EngineInfo(
    backend="fake",
    max_model_len=512,
    vocab_size=49152,
    block_size=32,
    num_blocks=8,
    kv_bytes=0,
    max_running_requests=8,
    max_batched_tokens=64,
    threads=1,
)


class Child:
    """The engine's side of a socket pair in a thread, beside a real process that stands for its life and death."""

    def __init__(self, load, command=("sleep", "60")):
        self.connection, theirs = socket.socketpair()
        self.process = subprocess.Popen(command)
        self.status = None
        self.thread = threading.Thread(target=self._run, args=(theirs, load), daemon=True)
        self.connection.sendall(encode_frame(Start(settings=ServerSettings())))
        self.thread.start()

    def _run(self, connection, load):
        with connection:
            self.status = process.serve(Channel(connection), load)
        self.process.kill()


def read(connection: socket.socket, kind: type):
    reader, found = FrameReader(), []
    while not any(isinstance(message, kind) for message in found):
        found += [decode_from_engine(frame) for frame in reader.feed(connection.recv(65536))]
    return found


def request(name: str, n: int = 1) -> Request:
    return Request(id=name, tokens=[1, 2, 3], sampling=SamplingParams(n=n, max_tokens=40))


async def outputs(client: ProcessClient, *requests: Request) -> list[Output]:
    """Submit requests and wait until all their sequences have ended."""
    arrived: asyncio.Queue[Output] = asyncio.Queue()
    client.router.submit(requests, arrived.put_nowait)
    found = []
    while client.router.sequences or not arrived.empty():
        found.append(await arrived.get())
    return found


def test_frames_survive_any_cut():
    messages = [[request("a")], [Abort(id="a"), Abort(id="b", index=1)], []]
    data = b"".join(map(encode_frame, messages))
    for size in (1, 3, 1000):
        reader = FrameReader()
        frames = [frame for i in range(0, len(data), size) for frame in reader.feed(data[i : i + size])]
        assert [ipc.decode_to_engine(frame) for frame in frames] == messages


def test_a_senseless_length_is_refused():
    with pytest.raises(ValueError, match="limit"):
        list(FrameReader().feed(b"\xff\xff\xff\xff"))


async def test_a_conversation(fake_engine):
    child = Child(lambda _: (fake_engine, INFO))
    client = ProcessClient(child, stall_seconds=30)
    info = await client.start()
    found = await outputs(client, request("a", n=2))
    await client.close()
    child.thread.join(5)
    assert info == INFO
    assert {(o.id, o.index) for o in found} == {("a", 0), ("a", 1)}
    assert [o.finish_reason for o in found if o.finish_reason] == ["stop", "stop"]
    assert child.status == 0, "our end closing ends the engine"


async def test_during_a_run_of_steps_the_engine_watches_its_socket(fake_engine):
    child = Child(lambda _: (fake_engine, INFO))
    client = ProcessClient(child, stall_seconds=30)
    await client.start()
    assert stat.S_ISSOCK(os.fstat(fake_engine.message_fd).st_mode)
    await client.close()
    child.thread.join(5)


async def test_idle_the_engine_waits_in_recv(fake_engine):
    child = Child(lambda _: (fake_engine, INFO))
    client = ProcessClient(child, stall_seconds=30)
    await client.start()
    await outputs(client, request("a"))

    def waits_for_ever() -> bool:
        frame = sys._current_frames()[child.thread.ident]
        return frame.f_code.co_name == "receive" and frame.f_locals["wait"] is None

    await eventually_async(waits_for_ever)
    await client.close()


@pytest.mark.parametrize("what", ["grammar", "adapter"])
async def test_an_engine_that_only_waits_reports_life_and_keeps_deadlines(what):
    compiler, server = Compiler(), AdapterServer()
    run = make_guided(compiler=compiler)
    engine, gate = (run.engine, compiler.gate) if what == "grammar" else (server.engine, server.reader.gate)
    gate.clear()
    client = ProcessClient(Child(lambda _: (engine, INFO)), stall_seconds=30)
    await client.start()
    arrived: asyncio.Queue[Output] = asyncio.Queue()
    try:
        if what == "grammar":
            fields = {"guidance": Guidance(grammar=grammar(1, 3))}
        else:
            client.router.send(OfferAdapter(key="1", path="/adapters/1"))
            fields = {"adapter": "1"}
        client.router.submit([Request(id="waits", tokens=[1], timeout=5000, **fields)], arrived.put_nowait)
        heartbeat = client.router.heartbeat
        await eventually_async(lambda: client.router.heartbeat > heartbeat + 3)
        assert arrived.empty()
        run.clock.now += 6000
        server.time += 6000
        assert (await arrived.get()).stop_reason == "deadline"
    finally:
        gate.set()
        await client.close()


async def test_a_model_that_cannot_be_loaded_is_told_in_one_line():
    def load(_):
        raise ModelError("model.gguf: not a GGUF file")

    client = ProcessClient(Child(load), stall_seconds=30)
    with pytest.raises(EngineDiedError, match=r"^model\.gguf: not a GGUF file$"):
        await client.start()


async def test_a_killed_engine_ends_every_request(fake_engine):
    fake_engine.hold = True
    child = Child(lambda _: (fake_engine, INFO))
    client = ProcessClient(child, stall_seconds=30)
    await client.start()
    found: list[Output] = []
    for i in range(3):
        client.router.submit([request(f"r{i}")], found.append)
    child.process.kill()
    child.connection.shutdown(socket.SHUT_RDWR)
    cause = await client.router.failed()
    assert [output.id for output in found] == ["r0", "r1", "r2"]
    client.router.submit([request("late")], found.append)
    assert [output.id for output in found] == ["r0", "r1", "r2", "late"]
    assert {output.finish_reason for output in found} == {"error"}
    assert {output.error for output in found} == {LOST}, "the cause is for the operator"
    assert "SIGKILL" in str(cause)
    assert "--kv-memory" in str(cause)
    assert cause.status == 1


async def test_a_stalled_engine_is_dumped_and_killed(fake_engine, tmp_path):
    fake_engine.hold = True
    log = tmp_path / "log"
    # A process that writes its stacks when asked, as the engine does, and otherwise hangs.
    program = (
        "import faulthandler, sys, time; faulthandler.register(10, file=open(sys.argv[1], 'w')); print(1, flush=True)\n"
        "def hang():\n    time.sleep(60)\nhang()"
    )
    rank = subprocess.Popen(("sleep", "60"))  # noqa: ASYNC220 -- as every child here
    info = msgspec.structs.replace(INFO, rank_pids=(rank.pid,))
    child = Child(lambda _: (fake_engine, info), (sys.executable, "-c", program, str(log)))
    client = ProcessClient(child, stall_seconds=1.0)
    await client.start()
    [output] = await outputs(client, request("a"))
    cause = await client.router.failed()
    assert output.finish_reason == "error"
    assert "no step for 1 s" in str(cause)
    assert "its stacks are in the log above" in str(cause)
    assert cause.status == 70
    assert child.process.wait(5) == -signal.SIGKILL
    assert "in hang" in log.read_text()
    assert rank.wait(5) == -signal.SIGUSR1, "what it waits for is to tell, too"
    child.connection.close()


def test_messages_before_the_model_is_loaded_are_not_lost(fake_engine):
    ours, theirs = socket.socketpair()
    ours.sendall(encode_frame(Start(settings=ServerSettings())) + encode_frame([request("early")]))
    thread = threading.Thread(target=process.serve, args=(Channel(theirs), lambda _: (fake_engine, INFO)), daemon=True)
    thread.start()
    found = read(ours, EngineStep)
    ours.close()
    thread.join(5)
    assert isinstance(found[0], Ready)
    assert found[-1].outputs[0].id == "early"


def test_timeline_counts_from_the_kernel_s_start():
    timeline = Timeline.of_process()
    timeline.mark("here")
    assert 0 < timeline.now() < 3600
    assert "here at" in str(timeline)


async def test_a_stopped_engine_is_not_said_to_have_written_stacks(fake_engine):
    fake_engine.hold = True
    child = Child(lambda _: (fake_engine, INFO))
    client = ProcessClient(child, stall_seconds=0.2)
    await client.start()
    child.process.send_signal(signal.SIGSTOP)
    [output] = await outputs(client, request("a"))
    cause = await client.router.failed()
    assert output.error == LOST
    assert "its process is stopped" in str(cause)
    assert "stacks are in the log" not in str(cause)
    assert child.process.wait(5) == -signal.SIGKILL
    child.connection.close()
