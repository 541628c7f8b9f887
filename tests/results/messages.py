"""Expected wording of explanations, caveats, recommendations and errors of results."""

from __future__ import annotations

from offbeat.core.strategies.fedasync import FedAsync
from offbeat.core.strategies.fedavg import FedAvg
from offbeat.core.strategies.fedbuff import FedBuff
from offbeat.core.strategies.local import Local

# Strategy, events as CLIENT@TIME, client, and parts of the sentences about its first job.
JOBS = (
    (FedBuff(k=3), "0@1", 0, ["in no version so far: it waits in the buffer of 3"]),
    (FedAsync(alpha=0.5), "0@1 1@2", 1, ["1 version was committed in the meantime (staleness 1)"]),
    (FedAsync(alpha=0.5), "0@1 1@2", 1, ["committed at once as version 2, with no other update since version 1"]),
    (FedAsync(mode="delta", client_weight="examples"), "0@1", 0, ["which the trace does not contain"]),
    (FedAsync(max_staleness=0), "0@1 1@2", 1, ["fedasync rejected the update: staleness 1 is over 0"]),
    (Local(), "0@1", 0, ["its model stays local"]),
)
# Strategy, events, client, and the sentence about its last idle period.
WAITS = (
    (
        FedAvg(),
        "advance 0@10 1@30 2@95 advance",
        "waited for 85.0 s: for client 2, the last of the round, whose job started at 0.0 s and took 95.0 s",
    ),
    (FedAvg(), "advance 0@10 1@30", "waited for 20.0 s: the round waits for client 2, at work since 0.0 s"),
    (
        FedBuff(k=2, exclude_buffered=True),
        "0@1 1@5",
        "waited for 4.0 s: its update was in the buffer, and buffered clients get no work before the next step, until "
        "client 1 answered",
    ),
)
MOSTLY_FOR = "mostly for bern, the last of its round in 1 of 1 waits (85.0 s)"
EXPIRED = ("for client 2, whose job expired at 80.0 s", "the job expired after 80.0 s without an answer")
COMMITTED = (
    "committed as version 2 2.0 s later, when client 2 answered",
    "together with 2 updates from client 1 and client 2",
)
ENDED_BEFORE = "in no version when the run ended"
REFUSED = "answered after 7.0 s; the gate refused the update before fedasync: not finite"
REFUSED_COUNT = "1 refused by the gate"
SLOT_TAKEN = "the only slot was taken"
RUN_ENDED = "the run ended at 95 s"

# Changes of the summary of one run, and the reason why its method is excluded.
EXCLUDED = (
    ({"refused": {"not finite": 2}}, "2 of its updates were refused, most for not finite"),
    ({"learned": False}, "nothing was learned"),
    ({"ended": "100 jobs in a row were lost"}, "it ended early"),
)
CLEAR_WINNER = "take fedasync: its acc is the best over 3 seeds, and every other is worse by more than noise"
CHEAPEST = (
    "a tie between fedbuff and fedavg: over 3 seeds the differences are noise",
    "it moves the fewest bytes (900 B per run)",
)
LEAST_STATE = "keeps the least state per client"
SIMPLEST = "the simplest"
ONE_SEED = "over one seed a difference cannot be told from noise"
NO_OTHER = "take fedavg: no other method can be recommended"
NO_METHOD = "no method can be recommended: fedasync: seed 1"

SINGLE_SEED = "only one seed: another seed may reverse differences"
SINGLE_SEED_OF = "only one seed of fedavg: another seed may reverse differences"
NO_WINNER = (
    "no clear winner: the final acc of fedavg and fedbuff differs by 0.010, less than the seed-to-seed SD of 0.071"
)
TARGET_ONCE = "fedavg: reached the target acc=0.85 at a single evaluation only (2 s)"
SILENT_CLIENTS = (
    "fedavg: no update of 8 clients was accepted, so the model did not learn from their data: bern, 1, 2, 4, 5 and 3 "
    "more"
)
REJECTED = "fedavg: 1 of 2 jobs were rejected by the strategy"
FAILURES = (
    "fedavg: 1 of 10 jobs were refused by the gate, 1 of 10 jobs were lost, most often refused for numbers that are "
    "not finite"
)
EARLY_END = "fedavg, seed 0: ended early, after 100 seconds: nothing left to happen"
NOT_FINISHED = "fedavg, seed 1: not finished; these are the results after 100 seconds"
NEVER_BETTER = "learned nothing: acc was never better than at the start (0.100)"
NO_UPDATE = "fedavg: learned nothing: no update was accepted"

UNKNOWN_SUFFIX = r"x\.docx: a figure's file name must end in \.pdf, \.svg or \.png"
UNKNOWN_KIND = "unknown kind of figure 'curve': did you mean 'curves'"
NOTHING_STARTED = "no run has started"
NO_OWNERS = "natural needs data whose examples have owners"
NO_FOLDER = "nowhere is not a folder"
PORT_IN_USE = "choose another with --port"
TRACKER_FAILED = "warning: wandb failed and is no longer updated, the run continues: ConnectionError: no network"
TRACKER_SILENT = "does not respond"
TRACKER_MISSING = r"--track wandb needs the package wandb.*: pip install offbeat\[track\]"
UNKNOWN_TRACKER = "did you mean 'tensorboard'"
UNFINISHED = "not finished and not included in any mean; to continue: offbeat compare --resume x"
NO_REFERENCE = "no run of c is finished: differences to it are missing"
RANK_NOTES = ("not ranked because some setting does not have them: c",)
FRIEDMAN_NOTES = (
    "Friedman test: chi-square 6.00 with 2 degrees of freedom, p = 0.05 (approximate: fewer than ten settings)",
)
SIDE_BY_SIDE_NOTES = ("not finished: runs/b", "> : the target was not reached in that time")
