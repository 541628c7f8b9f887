"""Expected wording of error messages and warnings of the engine, as regular expressions unless stated otherwise."""

# actions of a strategy
UNKNOWN_CLIENT = "Dispatch to client 7: this client is unknown"
AT_WORK = "still works on ticket 0"
NOT_REACHABLE = "not reachable"
WRONG_SHAPE = r"shape \(3,\)"
WRONG_DTYPE = "torch.float64: use torch.float32"
PAST_TIMER = "at or after"
WRONG_REJECT = "not the update being answered"
NO_NUMBER = "use plain numbers"
NO_ACTION = "is not an action"
NO_LIST = "returned a tuple: return a list"
VERSION_MISMATCH = r"state\.version is 0 after 1 commits"
SET_TIMER_AT_END = "SetTimer at the end of a run: only Commit and Note are allowed"
LAST_VERSION_MISMATCH = "is 2 after 3 commits"
WHILE_ANSWERING = "while answering: 0 s: client 0 is ready (10 examples)"

# answers of clients, as plain text
NOT_FINITE = "numbers that are not finite"
TOO_LARGE = "too large to compute with: a norm over 7e+12"
NOT_DENSE = "not a dense vector"
INVALID_MEMORY = "memory that holds no finite vectors"
NO_ANSWER = "failed: the worker gave no answer"

# the start and the end of a run
INVALID_DURATION = "client 0: job 0 takes nan s"
NOT_MEASURED = "'acc' is not measured; measured metrics: loss"
TARGET_ALONE = r"acc=0.9 alone may never be reached"
ALL_FAILED = "first {} local trainings all failed: TypeError: no such layer"
ALL_REFUSED = "10 answers in a row were refused, the last for numbers that are not finite"
NOT_FINITE_START = "initial model has numbers that are not finite"
COMMIT_NOT_FINITE = "not finite: a Commit after version {}, which is kept; tickets since: {}"
DISPATCH_NOT_FINITE = (
    "not finite: a Dispatch to client 0, ticket 3, after version 0, which is kept; tickets since: 0, 1, 2"
)

# traces
TRACE_IN_MEMORY = "trace of this run is in memory"
TRACE_MISSING = r"none\.sqlite is missing"
TRACE_FULL = r"cannot write the trace .* full"
MISSING_ROW = "its table {} has {} rows where {} were written"
DISK_ERROR = "disk I/O error"

# checkpoints and stores
UNKNOWN_FORMAT = "has checkpoint format 99, but this version reads only 4"
INVALID_PACK = r"000001\.safetensors does not fit the checkpoint"
PACK_MISSING = r"cannot read .*000001.safetensors: No such file"
DAMAGED = "{} is damaged"
NO_USABLE_CHECKPOINT = r"no usable checkpoint.*000001.safetensors is damaged"
NO_SPACE = "No space left on device"
CHANGED_IN_PLACE = "changed in place after it was put into a store"
DAMAGED_SLOT = r"rows-256\.slots is damaged: slot 2 does not have the recorded SHA-256"
DAMAGED_IN_BOTH = r"no usable checkpoint .* slot 0 "
NO_SLOT = r"no usable checkpoint .* has no slot 0"
SLOTS_DISK_FULL = r"cannot write .*rows-256.slots: No space left on device"
CANNOT_OPEN = "cannot open"

# live runs
NAME_TAKEN = "the name 'site-0' belongs to another site"
TOO_MANY_NAMES = "this run has had 3 sites, the maximum: join with the name of one of them"
OTHER_LAYOUT = "its model has another layout"
NO_EXAMPLES = "it has 0 examples"
OLDER_FOLDER = "it has answered ticket {} of this run, but the run folder of this server ends with ticket 2"
RUN_ENDED = "the run has ended: seconds"
TRACE_DISK_FULL = "cannot write the trace: database or disk is full; retrying"
SITES_DISK_FULL = r"cannot write sites\.json: No space left on device"
JOURNAL_FILE_MISSING = r"{}\.facts is missing"
JOURNAL_DAMAGED = "damaged at byte 0"
