"""Expected wording of the messages of commands: commands with parts of the message, and constants of single tests."""

from __future__ import annotations

# Commands that are refused with status 2 before a folder is made. TINY stands for the options of a tiny world.
REFUSED = (
    # run
    ("run", "give a preset or an experiment file"),
    ("run quikstart", "unknown preset or file 'quikstart'", "did you mean 'quickstart'?"),
    ("run qqq", "'offbeat list presets' shows all"),
    ("run mine.yaml", "cannot read mine.yaml", "No such file"),
    ("run quickstart --resume x", "or --resume DIR"),
    ("run --resume nowhere", "nowhere is not a run folder"),
    ("run --resume x --dry-run", "omit --dry-run"),
    ("run --resume x --set clients=5", "--resume continues with the stored settings"),
    ("run --resume x --seed 0", "--resume continues with the stored settings", "--seed"),
    ("run --resume x --until 5s", "--resume continues with the stored settings"),
    ("run --resume x --out y", "--resume continues with the stored settings"),
    ("run quickstart --set strategy=fedbuf --dry-run", "did you mean 'fedbuff'?"),
    ("run quickstart TINY --worker inlin", "unknown worker 'inlin': did you mean 'inline'?"),
    ("run quickstart TINY --worker inline:3", "inline takes no number"),
    ("run quickstart TINY --client-memory 8", "such as 8GB, 500MB"),
    ("run quickstart TINY --data none", "the folder does not exist"),
    ("run quickstart TINY --worker processes:0", "from 1 to 1024 processes, not 0"),
    ("run quickstart TINY --worker proceses", "did you mean 'processes'?"),
    ("run quickstart --scale quick", "'quickstart' has only one scale"),
    ("run orthofl/table2-mnist --scale quik", "did you mean 'quick'"),
    ("run --resume x --scale quick", "--scale"),
    ("run quickstart --track tensorbord", "did you mean 'tensorboard'?"),
    *((f"run quickstart TINY --until '{text}'", "until") for text in ("", "soon", "0s", "-5s", "0updates", "_updates")),
    *((f"run quickstart TINY --until '{text}'", "until") for text in ("acc=", "acc=high", "nan", "1e999s", ",")),
    # compare
    ("compare", "or --resume DIR"),
    ("compare quickstart --resume x", "or --resume DIR"),
    ("compare --resume nowhere", "nowhere is not a comparison: it has no compare.json"),
    ("compare --resume x --dry-run", "omit --dry-run"),
    ("compare --resume x --scale quick", "--scale"),
    ("compare --resume x --strategies fedavg", "--resume continues with the stored settings"),
    ("compare --resume x --seeds 1", "--resume continues with the stored settings"),
    ("compare --resume x --set clients=3", "--resume continues with the stored settings"),
    ("compare --resume x --until 5s", "--resume continues with the stored settings"),
    ("compare --resume x --out y", "--resume continues with the stored settings"),
    ("compare quickstart TINY --strategies fedavg,fedbuf", "unknown strategy 'fedbuf'", "'fedbuff'"),
    ("compare quickstart TINY --strategies ,", "--strategies ',' names no strategy"),
    ("compare quickstart TINY --strategies fedavg,fedasync --reference safa", "of this comparison 'safa'"),
    ("compare quickstart TINY --set strategy=fedbuff", "--set strategy=fedbuff", "--strategies"),
    ("compare quickstart TINY --set strategy.alpha=0.3", "--set strategy.alpha=0.3", "--strategies"),
    ("compare quickstart TINY --set ' strategy = fedbuff'", "--strategies"),
    ("compare quickstart TINY --set seed=3", "--set seed=3", "--seeds"),
    ("compare quickstart TINY --set clients=0", "clients = 0"),
    ("compare quickstart TINY --set clients=100 --set partition.alpha=0.001", "dirichlet alpha=0.001"),
    ("compare quickstart TINY --set target=accuracy=0.9", "unknown metric 'accuracy'"),
    ("compare quickstart TINY --until soon", "'soon' cannot be parsed"),
    ("compare quickstart TINY --worker inlin", "unknown worker 'inlin': did you mean 'inline'?"),
    ("compare quickstart TINY --worker inline:3", "inline takes no number"),
    ("compare quickstart TINY --client-memory 8", "such as 8GB, 500MB"),
    ("compare quickstart --track tensorbord", "did you mean 'tensorboard'?"),
    ("compare quickstart TINY --strategies 'fedbuff(k=2'", "')' is missing"),
    ("compare quickstart TINY --strategies 'fedbuff(q=2)'", "fedbuff(q=2): strategy: unknown setting 'q'"),
    ("compare quickstart TINY --strategies 'fedbuff(k=two)'", "fedbuff(k=two): strategy.k = 'two': expected a whole"),
    ("compare quickstart TINY --strategies 'fedbuff(k=0)'", "k = 0: the buffer holds at least 1 update"),
    ("compare quickstart TINY --strategies 'fedbuff(k.a=0)'", "strategy.k has no settings of its own"),
    ("compare quickstart TINY --strategies 'fedbuf(k=2)'", "unknown strategy 'fedbuf'", "'fedbuff'"),
    ("compare quickstart TINY --strategies 'fedasync(staleness=polynomal(a=1))'", "'polynomal'", "'polynomial'"),
    # sweep
    ("sweep", "or --resume DIR"),
    ("sweep --resume nowhere", "nowhere is not a comparison"),
    ("sweep --resume x --over clients=3", "--resume continues with the stored settings"),
    ("sweep quickstart TINY", "give at least one --over"),
    ("sweep quickstart TINY --strategies fedbuff --over strategy.kk=1", "unknown setting 'kk'"),
    ("sweep quickstart TINY --strategies fedbuff --over strategy=fedavg,fedbuff", "--strategies"),
    ("sweep quickstart TINY --strategies fedbuff --over clients=4,0", "clients = 0"),
    ("sweep quickstart TINY --over partition.alpha=1,0.001 --set clients=100", "dirichlet alpha=0.001"),
    ("sweep quickstart TINY --over training.lr=0.1 --set strategy.k=2", "--set strategy.k=2", "--strategies"),
    ("sweep quickstart --track tensorbord", "did you mean 'tensorboard'?"),
    # which
    ("which", "give a preset or an experiment file, --from RUN"),
    ("which --sites 1", "sites = 1: must be from 2 to"),
    ("which --speeds 0.5", "speeds = 0.5: must be from 1"),
    ("which --away 1", "away = 1: must be a share of the time"),
    ("which --sizes 1000", "sizes = 1000: must be from 1"),
    ("which quickstart --sites 4", "give only one of"),
    ("which --from nowhere", "--from nowhere: the folder does not exist"),
    ("which nowhere.yaml", "nowhere.yaml"),
    ("which quickstart --set seed=3", "--seeds"),
    ("which quickstart --until ,", "--until is empty: write 3600s"),
    ("which quickstart --methods fedavgg", "did you mean 'fedavg'?"),
    ("which quickstart --methods ' , '", "--methods ' , ' names no strategy"),
    ("which quickstart --budget nan", "--budget nan: expected seconds"),
    ("which quickstart --budget inf", "--budget inf: expected seconds"),
    # reproduce
    ("reproduce", "give a paper"),
    ("reproduce orthofel", "orthofl"),
    ("reproduce orthofl --scale large", "quick"),
    ("reproduce orthofl --stored --into nowhere", "nowhere is not a folder"),
    ("reproduce orthofl --stored --store nowhere", "the store nowhere does not exist"),
    ("reproduce orthofl/motivation-30 --until ''", "--until is empty: write 3600s"),
    ("reproduce orthofl/motivation-30 --until ' , '", "--until is empty: write 3600s"),
    ("reproduce heart-disease", "belongs to no paper: run it with 'offbeat compare heart-disease'"),
    # list
    ("list strategy", "'strategy'", "did you mean 'strategies'?"),
    ("list strategies fedbuf", "unknown strategy 'fedbuf': did you mean 'fedbuff'?"),
    ("list strategies zzz", "'offbeat list strategies' shows all 21"),
    ("list modells", "unknown list 'modells': did you mean 'models'?"),
    ("list fedbuff", "did you mean 'offbeat list strategies fedbuff'?"),
    # commands that read a folder
    ("show nowhere", "nowhere is not a folder"),
    ("show .", ". is not a run folder: it has no experiment.yaml"),
    ("show . --figure x.pdf", ". is not a run folder"),
    ("export nowhere", "nowhere is not a folder"),
    ("export .", "is not a run folder"),
    ("explain nowhere --client 0", "nowhere"),
    ("watch nowhere", "nowhere is not a folder"),
    ("watch .", "is not a run folder"),
    ("dashboard nowhere", "nowhere is not a folder"),
    ("check missing.py", "missing.py"),
    # new
    *(
        (f"new site -- '{name}'", "a site's name consists of letters")
        for name in ("", " ", ".py", 'a"""b', "a\nb", "-x/..")
    ),
    ("new strategy 'a/b\n'", "a strategy's name consists of letters"),
    ("new experiment .yaml", "an experiment's name consists of letters"),
)  # fmt: skip

# Changes of settings of quickstart in the tiny world, and parts of the message.
INVALID_SETTINGS = (
    (["clints=4"], ["unknown setting 'clints'", "did you mean 'clients'?"]),
    (["strategy=fedbuf"], ["unknown strategy 'fedbuf'", "did you mean 'fedbuff'?"]),
    (["model=cnnn"], ["unknown model 'cnnn'", "'cnn'"]),
    (["data=digit"], ["unknown data set 'digit'", "'digits'"]),
    (["delays=unifrom"], ["unknown delays 'unifrom'", "'uniform'"]),
    (["partition=dirichelt"], ["unknown partition 'dirichelt'", "'dirichlet'"]),
    (["strategy.alhpa=0.4"], ["strategy: unknown setting 'alhpa'", "'alpha'"]),
    (["strategy.stalenes.a=0.4"], ["strategy: unknown setting 'stalenes'", "'staleness'"]),
    (["lr=0.1"], ["unknown setting 'lr'", "'training.lr'"]),
    (["staleness=hinge"], ["'strategy.staleness'"]),
    (["training.optimizer=sdg"], ["training.optimizer", "'sdg'", "'sgd'"]),
    (["strategy.mode=mxi"], ["strategy.mode", "'mxi'", "'mix'"]),
    (["target=accuracy=0.9"], ["unknown metric 'accuracy'", "'acc'"]),
    (["clients=two"], ["clients = 'two'", "a whole number"]),
    (["clients=1.5"], ["clients = 1.5", "a whole number"]),
    (["clients=true"], ["clients = true", "a whole number"]),
    (["clients="], ["clients = null", "a whole number"]),
    (["training.lr=fast"], ["training.lr = 'fast'", "a number"]),
    (["training=5"], ["training = 5", "it is a section"]),
    (["training=null"], ["training = null", "it is a section"]),
    (["strategy.work=5"], ["strategy.work = 5", "steps, epochs, lr"]),
    (["strategy.work=null"], ["strategy.work = null"]),
    (["model=mlp", "model.hidden=64"], ["model.hidden = 64", "a list"]),
    (["model=mlp", "model.hidden=[true]"], ["model.hidden", "a list", "a whole number"]),
    (["strategy=[fedavg]"], ["['fedavg'] names no strategy"]),
    (["strategy=7"], ["7 names no strategy", "'offbeat list strategies' shows all 21"]),
    (["clients.x=1"], ["clients has no settings of its own"]),
    (["clients"], ["'clients' is invalid", "setting=value"]),
    (["=4"], ["'=4' is invalid"]),
    (["strategy..k=4"], ["is invalid"]),
    (["clients=0"], ["clients = 0", "at least 1"]),
    (["clients=2000"], ["2000 clients", "there are 1442"]),
    (["clients=100", "partition.alpha=0.001"], ["dirichlet alpha=0.001", "raise alpha"]),
    (["seed=-1"], ["seed = -1", "0 or more"]),
    (["training.lr=-1"], ["training.lr = -1.0: must be positive"]),
    (["training.epochs=5"], ["training: steps = 20 and epochs = 5: give one of"]),
    (["strategy.alpha=7"], ["strategy: alpha = 7.0", "(0, 1]"]),
    (["strategy.staleness.a=-1"], ["strategy.staleness: polynomial staleness a = -1.0"]),
    (["delays.low=200"], ["low = 200.0 is above high = 5.0"]),
    (["delays=per_client"], ["delays: means must be given"]),
    (["delays={name: per_client, means: [1, 2]}"], ["2 means for 4 clients"]),
    (["timeout=0.5"], ["timeout = 0.5"]),
    (["evaluate_every=0"], ["evaluate_every = 0.0"]),
    (["max_norm=-1"], ["max_norm = -1.0"]),
    (["target=0.9"], ["target '0.9' is invalid: write 'acc=0.9'"]),
    (["target=acc=0.9,5s"], ["target 'acc=0.9,5s' is invalid"]),
)

# Contents of an experiment file, and parts of the message.
INVALID_FILES = (
    (b"\x00\xff\xfe\x01", ["not a text file"]),
    (b"clients: 4\x00", ["invalid YAML"]),
    (b"clients: [1\nfoo: }", ["line 2", "invalid YAML"]),
    (b"clients: !!python/object/apply:os.system [ls]", ["line 1", "invalid YAML"]),
    (b"name: 2020-99-99", ["line 1", "invalid YAML", "'2020-99-99' cannot be read as timestamp"]),
    (b"[" * 400, ["invalid YAML"]),
    (b"- a\n- b\n", ["settings such as 'clients: 20'", "this one a list"]),
    (b"just words", ["settings such as 'clients: 20'", "'just words'"]),
    (b"", ["this one nothing"]),
    (b"clients: 4\nclinets: 5\n", ["unknown setting 'clinets'", "'clients'"]),
)

# Commands of live federations that are refused before anything is made.
REFUSED_LIVE = (
    ("serve", "give a preset or an experiment file, or --resume DIR"),
    ("serve quickstrat --local 2", "did you mean 'quickstart'?"),
    ("serve quickstart --insecure --host 0.0.0.0", "--insecure is not allowed on 0.0.0.0"),
    ("serve quickstart --local 2 --host 10.0.0.1", "--local is not allowed on 10.0.0.1"),
    ("serve quickstart", "make keys with 'offbeat keys --host 127.0.0.1 --site NAME'"),
    ("serve quickstart --local 2 --record some", "--record some: expected checkpoint or full"),
    ("serve quickstart --local 2 --compression zip", "unknown compression 'zip'"),
    ("serve quickstart --local 2 --set strategy=global", "cannot be served to sites"),
    ("serve quickstart --local 2 --model none.py", "none.py is not a Python file"),
    ("serve --resume nowhere --local 2", "nowhere is not a run folder"),
    ("serve --resume x --until 3s --local 2", "--resume continues with the stored settings"),
    ("join", "--server HOST:PORT is missing"),
    ("join --server here", "'here' is not HOST:PORT"),
    ("join --server 127.0.0.1:1", "give --keys DIR"),
    ("join --server 10.0.0.1:1 --insecure", "--insecure is not allowed for 10.0.0.1"),
    ("join --server 127.0.0.1:1 --insecure", "give either --data FILE"),
    ("join --server 127.0.0.1:1 --insecure --data a.py", "'offbeat new site a' makes one"),
    ("join --check", "--data FILE"),
    ("status nowhere", "nowhere is neither a run folder nor HOST:PORT"),
    ("keys --host 'a b'", "is not a host name or address"),
    ("keys --site ../a", "a name consists of letters, digits"),
)
FLOWER_MISSING = "pip install 'offbeat[flower]'"
PORT_IN_USE = "port {} of 127.0.0.1 is in use"
OTHER_KEYS = "these keys belong to the site hospital-a"
NO_SERVER = "no server listens at 127.0.0.1:1: start 'offbeat serve' there first"
NOT_LIVE = "is not a live run"

# Texts of a strategy file, and the message of `offbeat check`.
INVALID_STRATEGY_FILES = (
    ("x = (\n", "mine.py line 1: SyntaxError"),
    ("x = 1\ny = x / 0\n", "mine.py line 2: ZeroDivisionError"),
    ("raise ValueError('one\\ntwo')\n", "mine.py line 1: ValueError: one two"),
    ("import nothing_of_this_name\n", "mine.py line 1: ModuleNotFoundError"),
    ("import sys\nsys.exit(0)\n", "mine.py line 2: SystemExit"),
    ("x = 1\n", "mine.py defines no strategy: a class with init(world) and on_event(state, event)"),
    ("from offbeat.core.strategies.fedavg import FedAvg\n", "mine.py defines no strategy"),
)
ADVICE = ("add a docstring of one line", "About(", "rate = nan is accepted: write rate: Rate", "k = -1 is accepted")

# Differences of a summary, and the reason why nothing was learned.
NOTHING_LEARNED = (
    ({"updates": 0, "versions": 0}, "no update was applied in 100 seconds"),
    ({"updates": 0, "versions": 0, "lost": 4, "rejected": 1}, "in 100 seconds (1 rejected, 4 lost)"),
    ({"updates": 0, "refused": {"too far": 5, "x": 1}}, "all 6 answers were refused, most for too far"),
    ({"versions": 0}, "the model was never changed (10 updates arrived)"),
    ({}, "the model was never better than at the start (10 updates arrived)"),
)

# Edits of experiment.yaml, and the change that is reported.
EDITED_SETTINGS = (
    ("lr: 0.05", "lr: 0.5", "training.lr was 0.05, is 0.5 now"),
    ("until: 400s", "until: 800s", "until was 400s, is 800s now"),
    ("high: 5.0", "high: 6.0", "delays.high was 5.0, is 6.0 now"),
    ("clients: 3", "clients: 4", "clients was 3, is 4 now"),
    ("seed: 0", "seed: 1", "seed was 0, is 1 now"),
    ("availability: {name: always}", "availability: {name: churn}", "availability was always, is churn now"),
    ("faults: []", "faults: [{name: crash}]", "faults was []"),
)

STOPPED = "stopped; continue with: offbeat {} --resume {}\n"
COMPLETE = "this run is already complete\n"
NO_CHECKPOINT = "no usable checkpoint in stopped/checkpoint"
START_OVER = "to start over, remove {}/checkpoint"
CHANGED_SINCE_MADE = "changed since the run was made"
CHANGED_SINCE_END = "changed since the run ended"
LINK = "is a symbolic link"
DISK_FULL = "database or disk is full"
NO_SPACE = "No space left on device"
CANNOT_CREATE = "cannot create the run folder {}"
UNFINISHED = "not finished and not included in any mean; to continue: offbeat compare --resume half"
NOT_LEARNED = "NOTHING WAS LEARNED: "
SINGLE_RUN = "is a single run without a comparison"
BUFFER_TOO_LARGE = "strategy.k = 5 exceeds the 4 clients that can work at once"
IN_OWN_CODE = "mine.py line 28: AttributeError: 'Seen' object has no attribute 'cuont'"
MOST_REFUSED = r"warning: \d+ of \d+ answers were refused, \d+ for numbers that are not finite: .*\n"
DATA_MISSING = ("/mnist/", "put the file there")

NO_RUN = "{} is not a run folder: it has no experiment.yaml"
CANNOT_MAKE = ("cannot make runs/", "--out")
HOLDS_RUN = ("x already holds a run", "offbeat run --resume x", "another --out")
HOLDS = "x already holds {}"
HOLDS_ANY_RUN = "already holds a run"
HOLDS_MANIFEST = "already holds compare.json"
HOLDS_COMPARISON = ("already holds a comparison", "compare --resume")
HOLDS_SWEEP = ("already holds", "'offbeat sweep --resume x'")
IS_COMPARISON = ("is a comparison", "offbeat compare --resume")
BUG = ("a bug in offbeat: KeyError", "test_run_command.py", "-X dev")
NOT_INSTALLED = "yaml is not installed"
NOT_FINITE = ("offbeat: not finite: a Commit after version", "tickets since: ")
NOT_REACHED = "not reached by 120 s (best 0."
UNKNOWN_REFERENCE = ("unknown strategy of this comparison 'fedasink'", "'fedasync'")
DAMAGED_MANIFEST = "x/compare.json is damaged"
DAMAGED_COMPARISON = "compare.json is damaged"
INVALID_REFERENCE = "its reference is {!r}"
ESCAPED_STRATEGY = "unknown strategy '\\x1b[2J"
OWN_CODE_HINT = "in your own code"
NO_DIRECTORY = ("file/below", "Not a directory")
INVALID_FORMATS = (
    ("--format latx", "unknown format 'latx'", "'latex'"),
    ("--format csv --json", "--json and --format csv"),
    ("--out table.pdf", "table.pdf: unknown format", ".tex"),
    ("--out one/compare.json", "is a file of a run or comparison"),
    ("--out one/fedavg-seed0/world.json", "is a file of a run or comparison"),
)
CANNOT_WRITE = "cannot write {}"
NO_REFERENCE = "no run of fedasync is finished: differences to it are missing"
NOT_RANKED = "not ranked because some setting does not have them: fedbuff"
NO_FOLDER = "{} is not a folder"
USER_DATA = "sites is user code, which is not executed here"
INVALID_USER_CODE = (
    ("run quickstart --set strategy=mime.py:Mine", "mime.py"),
    ("run quickstart --set strategy=mine.py:Mune", "did you mean 'Mine'?"),
    ("run quickstart --set strategy=mine.py:Mine --set strategy.rats=1", "'rate'"),
    ("compare quickstart --strategies fedavg,mine.py", "write mine.py:Mine"),
)
TOO_FEW_MEANS = "2 means for 3 clients"
DATA_MOVED = "the run's data was in {}"
MISSING = "{} is missing"
NO_DATABASE = ("stopped/run.sqlite", "not a database")
NO_TEXT = "stopped/experiment.yaml: not a text file"
IN_USE = "x is in use by another process"
NOTHING_CHANGED = "Nothing was changed"
OLDER_CHECKPOINT = ("rows where", "trying the checkpoint before it")
INVALID_CONTENTS = "its contents are invalid: KeyError"
OTHER_FORMAT = "but this version reads only"
OTHER_MACHINE = (
    "stopped: the run started with torch 1.0; this machine has torch {}: results may differ in their last bits\n"
)
OTHER_MACHINES = r"x: of 2 runs, .* torch 1\.0.* torch \S+: .*"
START_AGAIN = "start the run again with --out x"
NO_METHOD = ("fedasync is excluded: seed 0: nothing was learned", "no method can be recommended")
EXISTING_COMPARISON = "w is an existing comparison"
TIE = (
    "a tie between fedbuff(k=1) and fedbuff(k=1,max_staleness=1000): over 2 seeds",
    "Take fedbuff(k=1): it is the simplest",
    "+0.000 [+0.000, +0.000]",
)
STAND_IN = "stand-in data: handwritten digits and a small model"
SAME_WITHOUT_QUESTIONS = "the same without questions: offbeat which --sites 3 --sizes 2 --speeds 5 --away 0"
SHORTENED = ("the runs end at", "instead of 120s to fit into 100 s")
NOT_STARTED = ("new has not started", "offbeat run --resume new")
NO_MODEL = "neither a final model nor a checkpoint"
DAMAGED_SIMULATION = "saved/simulation.json is damaged: it holds a list"
IS_SWEEP = "is a sweep, without speed-ups"
UNFINISHED_SWEEP = "11 of 12 runs are not finished; continue with: offbeat sweep --resume y\n"
HALF_RIGHT = "unknown thing 'conv': did you mean 'convex-d' or 'convex-c' or 'convex-b'?"
MANY_MODELS = "'offbeat list models' shows all 13"
DIED = ("a process of the comparison died", "offbeat compare --resume x")
INVALID_MOMENTS = (
    ("--client 3", "--client 3", "0 to 2"),
    ("--client -1", "--client -1"),
    ("--client 0 --at 121", "--at 121", "the run ended at 120 s"),
    ("--client 0 --at nan", "--at nan"),
)
NO_CLIENT = ("--client basel", "1, bern, zug")
MOSTLY_WAITED = "mostly for client 2, the last of its round in 2 of 3 waits (80.0 s)"
WAITED_AT = (
    "at 30.0 s client 0 was waiting, since 10.0 s",
    "for client 2, the last of the round, whose job started at 0.0 s and took 50.0 s",
    "of the average",
)
GATE_REFUSED = "the gate refused the update before fedasync"
EXPIRED = "the job expired after 100 s without an answer: crashed"
NEVER_SELECTED = "is not in the trace: it was never reachable, or fedasync never selected it"
FINISHED = r"whole finished \(seconds\): \d+ s, \d+ updates, acc 0\.\d+, loss \d\.\d+, staleness \d+\.\d\n"
NO_PROCESS = "no process computes {}: continue with 'offbeat {} --resume {}'"
SEVERAL_METHODS = (
    "study.yaml has several methods: two, four, fedasync",
    "--set 'strategy=two'",
    "offbeat compare study.yaml",
)
RUN_ONCE = (
    "fedbuff has the same settings as fedbuff(k=5): it is run once, as fedbuff(k=5)\n",
    "fedavg is named twice: it is run once\n",
)
RUNS_WITHOUT_LEARNING = (
    (["--set", "training.lr=1e-30"], "the model was never better than at the start"),
    (["--until", "1s"], "warning: NOTHING WAS LEARNED: no update was applied in 1 seconds"),
)
NEW_SITE = (
    "hospital-a.py is written: insert your model and data, then check it with\n"
    "  offbeat join --check --data hospital-a.py\n"
)
NEW_STRATEGY = (
    "cos-buff.py is written: insert your method, then try it with\n"
    "  offbeat check cos-buff.py\n"
    "  offbeat compare quickstart --strategies fedbuff,cos-buff.py:CosBuff\n"
)
NEW_EXPERIMENT = "study.yaml is written: change settings as needed, then run it with\n  offbeat run study.yaml\n"
EXISTS = "{} already exists"
UNKNOWN_CLASS = ("unknown strategy in two.py 'Othr'", "did you mean 'Other'?")
INVALID_FORMS = (
    ("frozen=True, ", "", ["BROKEN  frozen dataclass", "@dataclass(frozen=True, kw_only=True)"]),
    ("rate: float = 0.5", "rate: object = max", ["BROKEN  settings", "rate is a builtin_function_or_method"]),
    ("rate: float = 0.5", "rate: tuple = (1, {2})", ["BROKEN  settings"]),
    ("rate: float = 0.5", "rate: 'Nowhere' = 0.5", ["NameError"]),
)
CURE = "  cure: make a new tensor (state.model + x, torch.lerp), not add_"
IS_FILE = "{} file is a file"
BROKEN_LINK = "{} loop is a broken link"
IGNORED = "warning: --stored runs nothing and ignores --seeds and --until"
NOTHING_COPIED = ("empty: contains no runs", "kept: this is the store or a part of it")
PAGE_KEEPS = "pages/orthofl.md keeps entries with more runs than two has: Figure 2, 30 s"
PAGE_CONFLICT = ("that are not in the store and cannot be kept", "another rule", "--out")
UNKNOWN_KIND = "did you mean 'curves'?"
NO_FITREC = "endomondoHR_proper.json"
ONLY_PRESETS = "only presets of papers have scales"
REPLACED = "was killed by SIGKILL; it is replaced"
ENDED_PROCESSES = ("of client", "ended 3 processes", "SIGKILL", "offbeat run --resume x")
