"""Messages over Flower's grid, with a grid that is a few dictionaries."""

from __future__ import annotations

import pytest

from deploy import messages

pytest.importorskip("flwr")

from flwr.app import Error, Message, RecordDict

from offbeat.core.errors import RunError
from offbeat.deploy import grid_transport as grids
from offbeat.deploy.flower_payload import KIND, unwrap, wrap
from offbeat.deploy.grid_transport import GridTransport, NodeIdentity
from offbeat.engine.live.transport import Disconnected, Farewell, Hello, InvalidMessage, Question, Scores


@pytest.fixture(autouse=True)
def within_an_app(monkeypatch):
    """Flower's messages know the run and the task they are made in."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("run_id", "task_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1, raising=False)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


class FakeGrid:
    """Nodes answer with what `answers` says: bytes, an Error, a whole record, or None for not yet."""

    def __init__(self) -> None:
        self.nodes: set[int] = set()
        self.pushed: list[tuple[int, bytes]] = []
        self.answers = lambda node, data: b"hello" if data == b"greeting" else b"scores"
        self.open: dict[str, Message] = {}
        self.broken: Exception | None = None

    def get_node_ids(self):
        return set(self.nodes)

    def push_messages(self, messages):
        if self.broken is not None:
            raise self.broken
        (message,) = messages
        data = unwrap(message.content)
        self.pushed.append((message.metadata.dst_node_id, data))
        number = f"m{len(self.pushed)}"
        message.metadata.__dict__["_message_id"] = number
        self.open[number] = message
        return [number]

    def pull_messages(self, message_ids):
        replies = []
        for number in list(message_ids):
            message = self.open[number]
            answer = self.answers(message.metadata.dst_node_id, unwrap(message.content))
            if answer is not None:
                content = wrap(answer) if isinstance(answer, bytes) else answer
                replies.append(Message(content, reply_to=message))
                del self.open[number]
        return replies


def decode(data: bytes, address: int):
    if data == b"hello":
        return Hello(address, f"claims-{address}", "said", 10, "", "")
    if data == b"scores":
        return Scores(address, 0.0, 3, 1, {})
    raise RunError("not ours")


class World:
    def __init__(self, known=None) -> None:
        self.grid, self.clock = FakeGrid(), Clock()
        encode = lambda order: b"bye" if isinstance(order, Farewell) else b"question"  # noqa: E731
        self.transport = GridTransport(self.grid, b"greeting", encode, decode, known, self.clock, self.clock.pause)

    def go(self, seconds: float = 0.0) -> list[object]:
        """Let it look, push and pull once, without threads."""
        self.clock.now += seconds
        self.transport.pull_once()
        while not self.transport._outgoing.empty():
            self.transport.push_one()
        self.transport.pull_once()
        return self.transport.receive(0.0)


QUESTION = Question(0.0, 0, None)


def test_whoever_turns_up_is_greeted_once_and_heard():
    world = World()
    world.grid.nodes = {1, 2}
    assert sorted(h.address for h in world.go()) == [1, 2]
    world.go(grids.SCAN_SECONDS)
    assert sorted(world.grid.pushed) == [(1, b"greeting"), (2, b"greeting")]


def test_an_order_is_pushed_and_its_answer_heard():
    world = World()
    world.grid.nodes = {1}
    world.go()
    assert world.transport.send(1, QUESTION) == len(b"question")
    assert world.go() == [Scores(1, 0.0, 3, 1, {})]


def test_a_node_that_left_is_gone_and_its_open_messages_are_not_asked_for():
    world = World()
    world.grid.nodes = {1}
    world.go()
    world.grid.answers = lambda node, data: None
    world.transport.send(1, QUESTION)
    assert world.go() == []
    world.grid.nodes = set()
    assert [type(h) for h in world.go(grids.SCAN_SECONDS)] == [Disconnected]
    assert world.transport._unanswered == {}


def test_a_node_that_comes_back_is_greeted_again():
    world = World()
    world.grid.nodes = {1}
    world.go()
    world.grid.nodes = set()
    world.go(grids.SCAN_SECONDS)
    world.grid.nodes = {1}
    assert [type(h) for h in world.go(grids.SCAN_SECONDS)] == [Hello]


def test_an_error_is_the_end_of_a_node_until_it_answers_a_greeting_again():
    world = World()
    world.grid.nodes = {1}
    world.go()
    world.grid.answers = lambda node, data: Error(5, "it is away")
    world.transport.send(1, QUESTION)
    assert world.go() == [Disconnected(1, "it is away")]
    world.grid.answers = lambda node, data: b"hello"
    assert world.go(0.1) == []  # not at once: a dead node answers with errors as quickly as it is asked
    assert [type(h) for h in world.go(grids.GREETING_RETRY_SECONDS[0])] == [Hello]


def test_a_node_that_answers_with_errors_is_greeted_ever_more_rarely_and_nobody_is_told_of_it():
    world = World()
    world.grid.nodes = {1}
    world.grid.answers = lambda node, data: Error(2, "its data file raised")
    heard = []
    for _ in range(600):  # ten minutes
        heard += world.go(1.0)
    # after 2, 4, 8, 16, 32 seconds, then every minute: 2 + 4 + 8 + 16 + 32 = 62, and (600 - 62) / 60 is 8 more
    assert 12 <= len(world.grid.pushed) <= 15
    assert heard == []


def test_what_is_no_message_is_told_as_garbled():
    world = World()
    world.grid.nodes = {1}
    world.go()
    answers = iter([b"nonsense", RecordDict({}), wrap(b"x" * 10)])
    world.grid.answers = lambda node, data: next(answers)
    for expected in ("not ours", "expected exactly one array", "not ours"):
        world.transport.send(1, QUESTION)
        (heard,) = world.go()
        assert isinstance(heard, InvalidMessage)
        assert expected in heard.why


def test_an_array_of_another_kind_is_not_unpacked():
    content = wrap(b"1234")
    content["offbeat"]["offbeat"].stype = "numpy.ndarray"
    with pytest.raises(ValueError, match=messages.NO_OFFBEAT_ARRAY):
        unwrap(content)
    assert KIND != "numpy.ndarray"


@pytest.mark.parametrize("data", [b"", b"\0" * 100, bytes(range(256)) * 50_000])
def test_bytes_are_the_same_after_the_journey(data):
    assert unwrap(wrap(data)) == data


def test_with_keys_a_site_is_whose_key_it_has_whatever_it_says():
    world = World(known=lambda: {1: NodeIdentity("hospital-a", "SHA256:abc")})
    world.grid.nodes = {1}
    (hello,) = world.go()
    assert (hello.name, hello.token) == ("hospital-a", "SHA256:abc")


def test_what_a_site_could_not_do_is_logged_under_its_name_in_its_own_words(caplog):
    world = World(known=lambda: {1: NodeIdentity("hospital-a", "SHA256:abc")})
    world.grid.nodes = {1}
    world.grid.answers = lambda node, data: Error(
        2, "<class 'offbeat.deploy.local_socket.SocketError'>:<'own.py:5: OSError'>"
    )
    world.go()
    assert caplog.messages == ["hospital-a: own.py:5: OSError"]


def test_with_keys_a_node_that_is_nobodys_is_not_heard():
    world = World(known=dict)
    world.grid.nodes = {1}
    assert world.go() == []


def test_an_answer_before_the_hello_is_not_believed():
    world = World()
    world.grid.nodes = {1}
    world.grid.answers = lambda node, data: b"scores"
    assert world.go() == []


def test_a_push_that_fails_is_told_and_tried_with_a_greeting_later():
    world = World()
    world.grid.nodes = {1}
    world.go()
    world.grid.broken = OSError("no route")
    world.transport.send(1, QUESTION)
    (gone,) = world.go()
    assert isinstance(gone, Disconnected)
    assert "no route" in gone.why
    world.grid.broken = None
    assert [type(h) for h in world.go(grids.GREETING_RETRY_SECONDS[0])] == [Hello]


def test_the_end_waits_for_farewells_to_be_read_but_not_for_ever():
    world = World()
    world.grid.nodes = {1, 2}
    world.go()
    for node in (1, 2):
        world.transport.send(node, Farewell("over"))
    assert world.transport._farewells == 2
    world.grid.answers = lambda node, data: b"" if node == 1 else None
    assert world.go() == []  # the answer to a farewell says nothing
    assert world.transport._farewells == 1
    world.transport._threads = [type("Thread", (), {"join": lambda self, timeout: None})()]
    began = world.clock.now
    world.transport.close()
    assert grids.FAREWELL_SECONDS <= world.clock.now - began < grids.FAREWELL_SECONDS + 1


def test_with_threads_the_engine_hears_and_is_told_when_flower_is_lost():
    world = World()
    world.grid.nodes = {1}
    transport = GridTransport(world.grid, b"greeting", lambda order: b"question", decode).start()
    assert [type(h) for h in transport.receive(5.0)] == [Hello]

    def lost() -> set[int]:
        raise ConnectionError("refused")

    world.grid.get_node_ids = lost
    with pytest.raises(RunError, match=messages.LINK_LOST):
        transport.receive(10.0)
    transport.close()
