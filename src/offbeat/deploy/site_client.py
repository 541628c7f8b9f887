"""A site, which answers the server's messages and computes each ticket once.

A site computes bit for bit the result of an inline trainer. A repeated ticket gets the same bytes: from the result
store, or by repeating the job, because jobs are pure. Each message is written to sent.log before it leaves the site.

    home/token       proves the identity of the site       home/sent.log    time, kind, ticket and bytes of messages
    home/runs/       stored results of each run            home/sent.log.N  older parts of the log
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from offbeat.core.errors import OffbeatError, RunError, describe_error, to_single_line
from offbeat.core.jobs import Failure, Result
from offbeat.core.protocol import LocalRule
from offbeat.core.threads import one_thread
from offbeat.deploy import compression, message_codec, rule_codec
from offbeat.deploy.result_store import ResultStore, ResultStoreError, StoredResult
from offbeat.deploy.site_data import LocalTraining, SiteSource
from offbeat.engine import write_atomically
from offbeat.engine.live import Farewell, Hello, JobAnswer, JobMessage, Question, Scores
from offbeat.experiment.spec import Experiment, FileContext, parse_experiment

log = logging.getLogger("offbeat")
UNKNOWN_ADDRESS = 0  # a site does not know its own address


@dataclass
class Participation:
    """The participation of the site in one run."""

    greeting: message_codec.Greeting
    experiment: Experiment
    training: LocalTraining
    results: ResultStore
    compression: compression.Compression
    since: float  # time of the first greeting
    most_examples: int = 0  # examples reported so far; the number never decreases


class Site:
    """Answer the messages of a server."""

    def __init__(
        self,
        home: Path,
        name: str,
        source: SiteSource,
        token: str | None = None,
        limit: int = message_codec.MAX_MESSAGE_BYTES,
    ) -> None:
        self.home, self.name, self._source, self._limit = home, name, source, limit
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._token = token or _load_token(home / "token")
        self._lock = threading.Lock()  # one job at a time: torch's random state is global
        self._current: Participation | None = None
        self._log = UploadLog(home)
        self.ended = threading.Event()
        self.farewell: Farewell | None = None
        self.cannot_join: OffbeatError | None = None  # why this site cannot take part in the run

    def handle(self, data: bytes) -> bytes:
        """Answer a message; raise OffbeatError if it is invalid or cannot be carried out. Thread-safe."""
        try:
            return self._dispatch_message(data)
        except OffbeatError as error:
            log.error("%s", error)
            message = _public_message(error)
            self._log_sent("error", "", message.encode())
            raise RunError(message) from None

    def _dispatch_message(self, data: bytes) -> bytes:
        """Answer a message according to its kind."""
        run, order = message_codec.open_envelope(data, None, self._limit)
        if isinstance(order, Farewell):
            return self._handle_farewell(run, order)
        with self._lock, one_thread():
            if isinstance(order, message_codec.Greeting):
                try:
                    return self._log_sent("hello", "", self._answer_greeting(order, data))
                except ResultStoreError:  # a temporary error: the disk may have space later
                    raise
                except OffbeatError as error:  # a permanent error
                    self.cannot_join = error
                    self.ended.set()
                    raise
            part = self._participation(run)
            if isinstance(order, JobMessage):
                digest = hashlib.sha256(data).hexdigest()
                return self._log_sent("result", f" ticket={order.ticket}", self._answer_assignment(part, order, digest))
            assert isinstance(order, Question)
            return self._log_sent("scores", f" version={order.version}", self._answer_question(part, order))

    def _answer_greeting(self, greeting: message_codec.Greeting, data: bytes) -> bytes:
        """Join the run and answer with Hello."""
        current = self._current
        if current is None or current.greeting != greeting:
            current = self._join(greeting, data)
        layout = rule_codec.layout_digest(current.training.layout, current.training.dtype)
        code, newest = rule_codec.code_digest(current.experiment.strategy), max(current.results.tickets(), default=None)
        examples = self._count_examples(current, _next_index(current))
        hello = Hello(UNKNOWN_ADDRESS, self.name, self._token, examples, layout, code, newest)
        return message_codec.encode(hello, greeting.run)

    def _join(self, greeting: message_codec.Greeting, data: bytes) -> Participation:
        """Load model and data for a run, and store its greeting."""
        results = ResultStore(self.home, greeting.run)
        # the server may name code files, which a site does not run
        experiment = parse_experiment(greeting.experiment, "the server's experiment", FileContext(runs_code=False))
        how = compression.parse_compression(greeting.compression)
        training = self._source.load(experiment)
        stored = results.greeting()
        since = time.time() if stored is None else stored[1]
        results.store_greeting(data, since)
        results.drop_old_runs()
        self._current = Participation(greeting, experiment, training, results, how, since)
        return self._current

    def _participation(self, run: str) -> Participation:
        """Return the participation in a run, restored from the stored greeting after a restart."""
        if self._current is None or self._current.greeting.run != run:
            stored = ResultStore(self.home, run).greeting()
            if stored is None:
                raise RunError(
                    f"site {self.name} has no greeting for run {to_single_line(run, 60)!r}: send a greeting first"
                )
            greeting = message_codec.decode(stored[0])
            assert isinstance(greeting, message_codec.Greeting)
            return self._join(greeting, stored[0])
        return self._current

    def _handle_farewell(self, run: str, order: Farewell) -> bytes:
        """Delete the results of an ended run and end this site."""
        part = self._current
        if not order.refused:
            ResultStore(self.home, run).clear()
        if part is None or part.greeting.run == run:  # else the farewell belongs to an older run
            self.farewell = order
            self.ended.set()
        return b""

    def _answer_assignment(self, part: Participation, order: JobMessage, digest: str) -> bytes:
        """Return the stored reply to a job, or train it now."""
        results = part.results
        stored = results.find(order.ticket)
        if stored is not None and stored.order == digest:
            return stored.reply
        if (newest := max(results.tickets(), default=-1)) > order.ticket:  # a delayed message
            return self._failure_reply(part, order, f"an outdated ticket: {newest} is newer")
        previous = results.find(order.accepted)
        if previous is None and order.accepted is not None and _keeps_memory(order.work.rule, part.experiment):
            log.warning("the memory stored for ticket %s is missing: the rule starts without memory", order.accepted)
        results.drop_unaccepted(order.accepted)
        began = time.perf_counter()
        answer = _train(part, order, previous)
        if isinstance(answer, Failure):
            return self._failure_reply(part, order, answer.reason)
        seconds = time.perf_counter() - began
        try:
            stored = self._make_result(part, order, digest, answer, previous, seconds)
            results.store(stored)
        except ResultStoreError as error:
            log.error("%s", error)
            return self._failure_reply(part, order, str(error))
        except Exception as error:  # compression failed, or extras cannot be sent
            return self._failure_reply(part, order, describe_error(error))
        return stored.reply

    def _make_result(
        self,
        part: Participation,
        order: JobMessage,
        digest: str,
        result: Result,
        previous: StoredResult | None,
        seconds: float,
    ) -> StoredResult:
        """Encode the reply to a job, compressed if the run asks for it."""
        upload, residual = None, None
        if str(part.compression) != "none":
            size = part.training.layout.num_params  # the statistics behind the parameters are never compressed
            delta = (result.local - order.base)[:size]
            parts, residual = compression.compress(part.compression, delta, previous.residual if previous else None)
            upload = message_codec.CompressedUpload(str(part.compression), size, parts, result.local[size:])
        returned = JobAnswer(UNKNOWN_ADDRESS, result, self._count_examples(part, order.index + 1), seconds)
        reply = message_codec.encode(returned, part.greeting.run, upload)
        memory = result.memory or (previous.memory if previous else {})
        return StoredResult(order.ticket, order.index, digest, reply, memory, residual)

    def _failure_reply(self, part: Participation, order: JobMessage, reason: str) -> bytes:
        """Encode the reply to a job that failed."""
        failure = Failure(order.ticket, to_single_line(reason))
        returned = JobAnswer(UNKNOWN_ADDRESS, failure, self._count_examples(part, order.index + 1))
        return message_codec.encode(returned, part.greeting.run)

    def _answer_question(self, part: Participation, order: Question) -> bytes:
        """Evaluate the model; report no scores if the site's data or code fails."""
        try:
            examples, values = part.training.scores(order.model)
        except Exception as error:
            log.warning("the model could not be evaluated here: %s", describe_error(error))
            examples, values = 0, {}
        scores = Scores(UNKNOWN_ADDRESS, order.now, order.version, examples, values)
        return message_codec.encode(scores, part.greeting.run)

    def _count_examples(self, part: Participation, index: int) -> int:
        """Return the current number of examples, which never decreases, even if the site's code raises."""
        try:
            examples = part.training.num_examples(index, max(0.0, time.time() - part.since))
            part.most_examples = max(part.most_examples, examples)
        except OffbeatError as error:
            if part.most_examples == 0:
                raise
            log.warning("the number of examples is unknown: %s", error)
        return part.most_examples

    def _log_sent(self, kind: str, about: str, reply: bytes) -> bytes:
        """Log a reply before it is sent, and return it."""
        self._log.add(kind, about, len(reply))
        return reply


def _train(part: Participation, order: JobMessage, previous: StoredResult | None) -> Result | Failure:
    """Train a job; an error becomes a Failure."""
    try:
        return part.training.trainer(order.client)(order.to_job(previous.memory if previous else {}))
    except Exception as error:  # includes MemoryError: the next job may be smaller
        log.error("ticket %d: %s", order.ticket, describe_error(error))
        why = _public_message(error) if isinstance(error, OffbeatError) else describe_error(error)
        return Failure(order.ticket, why)


def _public_message(error: OffbeatError) -> str:
    """Return the part of an error that may leave the site."""
    return to_single_line(getattr(error, "outward", error))


def _keeps_memory(rule: LocalRule | None, experiment: Experiment) -> bool:
    """Return whether jobs with this rule depend on earlier ones."""
    return bool(rule is not None and rule.memory) or experiment.training.bn == "local"


def _next_index(part: Participation) -> int:
    """Return the index of the next job of this site."""
    newest = part.results.newest()
    return 0 if newest is None else newest.index + 1


def _load_token(path: Path) -> str:
    """Return the secret of this site, drawn once."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        token = ""
    if not token:
        token = secrets.token_hex(16)
        write_atomically(path, token.encode())
        os.chmod(path, 0o600)
    return token


MAX_LOG_BYTES = 10 << 20  # approximate size of a file; a line has less than 100 bytes
MAX_OLD_LOGS = 9  # older files: some months of a busy site


class UploadLog:
    """Log every message that leaves the site; keep the newest of very many. Thread-safe."""

    def __init__(self, home: Path) -> None:
        self.path = home / "sent.log"
        self._lock = threading.Lock()

    def add(self, kind: str, about: str, size: int) -> None:
        """Append a line about a message; a full log is rotated."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = f"{now} {kind}{about} bytes={size}\n"
        try:
            with self._lock:
                with open(self.path, "a", encoding="utf-8") as file:
                    file.write(line)
                    full = file.tell() >= MAX_LOG_BYTES
                if full:
                    self._rotate()
        except OSError as error:  # the message is in the process log instead
            log.warning("%s cannot be written (%s): %s", self.path, error.strerror or error, line.strip())

    def _rotate(self) -> None:
        """Rename each log to the next older name; the oldest one is replaced."""
        files = [self.path, *(self.path.with_name(f"{self.path.name}.{n}") for n in range(1, MAX_OLD_LOGS + 1))]
        for newer, older in reversed([*pairwise(files)]):
            if newer.exists():
                newer.replace(older)
