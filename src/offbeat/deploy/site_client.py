"""A site: what answers the server's messages, exactly once where it counts.

A site computes what an inline trainer would, to the last bit, from what it is sent and what it kept. The same ticket
again is answered with the same bytes: from the outbox, or after waiting for the job that is running, or by computing it
again, since jobs are pure. What leaves the site is written to sent.log before it leaves.

    home/token       proves that it is the site of its name      home/sent.log    time, kind, ticket, bytes (`sentlog`)
    home/runs/       what it keeps of each run (`outbox`)
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from offbeat.core.errors import OffbeatError, RunError, in_words, plain_text
from offbeat.core.jobs import Failure, Job, Result
from offbeat.core.parts import compression
from offbeat.core.protocol import LocalRule
from offbeat.core.threads import one_thread
from offbeat.deploy import message_codec, rule_codec
from offbeat.deploy.result_store import Kept, Outbox, OutboxError
from offbeat.deploy.site_data import Ground, Source
from offbeat.deploy.upload_log import SentLog
from offbeat.engine.checkpoint import write_whole
from offbeat.engine.live.transport import Assignment, Farewell, Hello, Question, Returned, Scores
from offbeat.experiment.spec import experiment_files
from offbeat.experiment.spec.config import Experiment
from offbeat.experiment.spec.serialization import Home

log = logging.getLogger("offbeat")
HERE = 0  # a site does not know the address it is reached at


@dataclass
class Part:
    """The site's part in one run."""

    greeting: message_codec.Greeting
    experiment: Experiment
    ground: Ground
    outbox: Outbox
    compression: compression.Compression
    since: float  # when it was greeted first
    most: int = 0  # examples it has told of: they never become fewer


class Site:
    def __init__(
        self, home: Path, name: str, source: Source, token: str | None = None, limit: int = message_codec.LIMIT
    ) -> None:
        self.home, self.name, self._source, self._limit = home, name, source, limit
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._token = token or _own_token(home / "token")
        self._one_at_a_time = threading.Lock()  # of what computes: torch's random state is the whole process's
        self._part: Part | None = None
        self._log = SentLog(home)
        self.ended = threading.Event()
        self.farewell: Farewell | None = None
        self.unable: OffbeatError | None = None  # why it cannot take part in the run it was greeted for

    def handle(self, data: bytes) -> bytes:
        """The answer to a message; what is none, or cannot be done here, raises an OffbeatError. For any thread."""
        try:
            return self._handle(data)
        except OffbeatError as error:
            log.error("%s", error)
            told = _outward(error)
            self._sent("error", "", told.encode())
            raise RunError(told) from None

    def _handle(self, data: bytes) -> bytes:
        run, order = message_codec.opened(data, None, self._limit)
        if isinstance(order, Farewell):
            return self._farewell(run, order)
        with self._one_at_a_time, one_thread():
            if isinstance(order, message_codec.Greeting):
                try:
                    return self._sent("hello", "", self._greeted(order, data))
                except OutboxError:  # there may be room again
                    raise
                except OffbeatError as error:  # nothing else will come of it
                    self.unable = error
                    self.ended.set()
                    raise
            part = self._taking_part(run)
            if isinstance(order, Assignment):
                digest = hashlib.sha256(data).hexdigest()
                return self._sent("result", f" ticket={order.ticket}", self._assigned(part, order, digest))
            assert isinstance(order, Question)
            return self._sent("scores", f" version={order.version}", self._asked(part, order))

    # ------------------------------------------------------------ greeted

    def _greeted(self, greeting: message_codec.Greeting, data: bytes) -> bytes:
        part = self._part
        if part is None or part.greeting != greeting:
            part = self._join(greeting, data)
        layout, code = (
            rule_codec.layout_digest(part.ground.layout, part.ground.dtype),
            rule_codec.code_digest(part.experiment.strategy),
        )
        newest = max(part.outbox.tickets(), default=None)
        hello = Hello(HERE, self.name, self._token, self._examples(part, _next_index(part)), layout, code, newest)
        return message_codec.encode(hello, greeting.run)

    def _join(self, greeting: message_codec.Greeting, data: bytes) -> Part:
        outbox = Outbox(self.home, greeting.run)
        # a server may name files of its own: whatever lies there at a site is not run
        experiment = experiment_files.parse(greeting.experiment, "the server's experiment", Home(runs_code=False))
        how = compression.parse(greeting.compression)
        ground = self._source.ground(experiment)
        known = outbox.greeting()
        since = time.time() if known is None else known[1]
        outbox.remember(data, since)
        outbox.outlive()
        self._part = Part(greeting, experiment, ground, outbox, how, since)
        return self._part

    def _taking_part(self, run: str) -> Part:
        """In that run: as it was greeted, now or before this process was started."""
        if self._part is None or self._part.greeting.run != run:
            known = Outbox(self.home, run).greeting()
            if known is None:
                raise RunError(f"site {self.name} was not greeted for run {plain_text(run, 60)!r}: greet it first")
            greeting = message_codec.decode(known[0])
            assert isinstance(greeting, message_codec.Greeting)
            return self._join(greeting, known[0])
        return self._part

    def _farewell(self, run: str, order: Farewell) -> bytes:
        part = self._part
        if not order.refused:
            Outbox(self.home, run).clear()
        if part is None or part.greeting.run == run:  # not of a run that this site has left behind
            self.farewell = order
            self.ended.set()
        return b""

    # ------------------------------------------------------------ at work

    def _assigned(self, part: Part, order: Assignment, digest: str) -> bytes:
        outbox = part.outbox
        kept = outbox.find(order.ticket)
        if kept is not None and kept.order == digest:
            return kept.reply
        if (newest := max(outbox.tickets(), default=-1)) > order.ticket:  # a message that was under way for long
            return self._failed(part, order, f"an old ticket: {newest} came after it")
        before = outbox.find(order.accepted)
        if before is None and order.accepted is not None and _remembers(order.work.rule, part.experiment):
            log.warning("what was kept for ticket %s is not here any more: the rule begins anew", order.accepted)
        outbox.settle(order.accepted)
        began = time.perf_counter()
        answer = _computed(part, order, before)
        if isinstance(answer, Failure):
            return self._failed(part, order, answer.reason)
        seconds = time.perf_counter() - began
        try:
            kept = self._kept(part, order, digest, answer, before, seconds)
            outbox.keep(kept)
        except OutboxError as error:
            log.error("%s", error)
            return self._failed(part, order, str(error))
        except Exception as error:  # a compression that cannot, extras that do not travel
            return self._failed(part, order, in_words(error))
        return kept.reply

    def _kept(
        self, part: Part, order: Assignment, digest: str, result: Result, before: Kept | None, seconds: float
    ) -> Kept:
        upload, residual = None, None
        if str(part.compression) != "none":
            size = part.ground.layout.num_params  # what comes after them, statistics, is never rounded
            delta = (result.local - order.base)[:size]
            parts, residual = compression.compress(part.compression, delta, before.residual if before else None)
            upload = message_codec.Upload(str(part.compression), size, parts, result.local[size:])
        returned = Returned(HERE, result, self._examples(part, order.index + 1), seconds)
        reply = message_codec.encode(returned, part.greeting.run, upload)
        memory = result.memory or (before.memory if before else {})
        return Kept(order.ticket, order.index, digest, reply, memory, residual)

    def _failed(self, part: Part, order: Assignment, reason: str) -> bytes:
        failure = Failure(order.ticket, plain_text(reason))
        returned = Returned(HERE, failure, self._examples(part, order.index + 1))
        return message_codec.encode(returned, part.greeting.run)

    def _asked(self, part: Part, order: Question) -> bytes:
        """Nothing, where the site's own data or code cannot tell: it goes on working."""
        try:
            examples, values = part.ground.scores(order.model)
        except Exception as error:
            log.warning("how good the model is could not be found out here: %s", in_words(error))
            examples, values = 0, {}
        return message_codec.encode(Scores(HERE, order.now, order.version, examples, values), part.greeting.run)

    def _examples(self, part: Part, index: int) -> int:
        """What there is now; never fewer than before, whatever the clock says or the data's own code raises."""
        try:
            part.most = max(part.most, part.ground.num_examples(index, max(0.0, time.time() - part.since)))
        except OffbeatError as error:
            if part.most == 0:
                raise
            log.warning("how many examples there are is not known: %s", error)
        return part.most

    def _sent(self, kind: str, about: str, reply: bytes) -> bytes:
        self._log.add(kind, about, len(reply))
        return reply


def _computed(part: Part, order: Assignment, before: Kept | None) -> Result | Failure:
    memory = before.memory if before else {}
    try:
        job = Job(
            ticket=order.ticket,
            client=order.client,
            index=order.index,
            base=order.base,
            base_version=order.base_version,
            work=order.work,
            num_examples=order.num_examples,
            memory=memory,
            seed=order.seed,
        )
        return part.ground.trainer(order.client)(job)
    except Exception as error:  # also of memory: the next job may be a smaller one
        log.error("ticket %d: %s", order.ticket, in_words(error))
        return Failure(order.ticket, _outward(error) if isinstance(error, OffbeatError) else in_words(error))


def _outward(error: OffbeatError) -> str:
    return plain_text(getattr(error, "outward", error))


def _remembers(rule: LocalRule | None, experiment: Experiment) -> bool:
    return bool(rule is not None and rule.memory) or experiment.training.bn == "local"


def _next_index(part: Part) -> int:
    newest = part.outbox.newest()
    return 0 if newest is None else newest.index + 1


def _own_token(path: Path) -> str:
    """A secret, drawn once."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        token = ""
    if not token:
        token = secrets.token_hex(16)
        write_whole(path, token.encode())
        os.chmod(path, 0o600)
    return token
