"""Experiment files and changes that once caused internal errors or never returned, or could."""

from __future__ import annotations

DIGITS = "9" * 5000
BILLION_LAUGHS = "name: &a0 [x, x]\n" + "".join(
    f"k{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
)
QUICK = "until: 1updates\nmodel: linear\nclients: 2\n"

FILES: dict[str, str | bytes] = {
    # aliases
    "a list of itself": "faults: &a [*a]\n",
    "a mapping of itself": "&a {name: *a}\n",
    "a setting of itself": "data: &a {name: *a}\n",
    "means of themselves": "delays: &a {name: per_client, means: [*a]}\n",
    "a billion laughs": BILLION_LAUGHS,
    "a billion means": BILLION_LAUGHS + "delays: {name: per_client, means: *a11}\n",
    "a merge of merges": "name: &a {x: 1}\nstrategy: {<<: [*a, *a]}\n",
    # tags
    "no timestamp": "name: !!timestamp x\n",
    "no date": "name: 2020-99-99\n",
    "no truth": "clients: !!bool x\n",
    "no number": "clients: !!int x\n",
    "no digits": "clients: !!int ''\n",
    "no float": "timeout: !!float ''\n",
    "no base64": "name: !!binary x\n",
    "bytes": "name: !!binary aGVsbG8=\n",
    "a set": "faults: !!set {a, b}\n",
    "code": "name: !!python/object/apply:os.system [true]\n",
    # numbers
    "an integer of 5,000 digits": f"clients: {DIGITS}\n",
    "a text of 5,000 digits": f"clients: '{DIGITS}'\n",
    "a text of 4,000 digits": f"clients: '{DIGITS[:4000]}'\n",
    "a share of 4,000 digits": f"timeout: {DIGITS[:4000]}\n",
    "a hexadecimal of 5,000 digits": f"seed: 0x{DIGITS}\n",
    "a binary of 50,000 digits": f"seed: 0b{'1' * 50_000}\n",
    "a base of 60": f"seed: {':'.join(['59'] * 3000)}\n",
    "5,000 digits of updates": f"until: {DIGITS}updates\n",
    "5,000 digits of seconds": f"until: {DIGITS}s\n",
    "4,000 digits of updates": f"until: {DIGITS[:4000]}updates\n",
    "a share that overflows": f"training: {{lr: {'9' * 400}}}\n",
    "a setting of 5,000 digits": f"? {DIGITS}\n: 1\n",
    # shapes
    "a thousand brackets": "name: " + "[" * 5000 + "]" * 5000 + "\n",
    "a thousand mappings": "name: " + "{a: " * 5000 + "}" * 5000 + "\n",
    "keys that are lists": "[1]: 1\n",
    "two documents": "clients: 2\n---\nclients: 3\n",
    "nothing": "",
    "a NUL": b"clients: 2\x00\n",
    "no text": b"\xff\xfe\x00\xd8",
    "a lone surrogate": 'name: "\\ud800"\n' + QUICK,
    "terminal codes as a setting": '"\\e[2J\\e]0;x\\a": 1\n',
    "terminal codes as a strategy": 'strategy: "\\e[2Jfedavg"\n',
    # paths
    "a folder with a NUL": 'data: {name: npz, folder: "a\\0b"}\n',
    "a folder of an unknown user": "data: {name: npz, folder: ~nouser/x}\n",
    "a trace with a NUL": 'delays: {name: trace, path: "a\\0b"}\n',
    "a trace of an unknown user": "delays: {name: trace, path: ~nouser/x}\n",
    "recorded availability with a NUL": 'availability: {name: trace, path: "a\\0b"}\n',
    "weights with a NUL": 'model: {name: efficientnet_b0, weights: "a\\0b"}\ndata: {name: digits}\n',
    "a tokenizer with a NUL": 'data: {name: 20news, tokenizer: "a\\0b"}\n',
    # sizes
    "a trillion clients": "clients: 1000000000000\n",
    "a trillion clients of anything": "clients: 1000000000000\npartition: iid\n",
    "a trillion clients that draw": "clients: 1000000000000\npartition: draws\n",
    "examples drawn beyond a word": QUICK + "partition: {name: draws, size: 100000000000000000000000000000}\n",
    "more clients than numbers": "clients: 1000000000000000000000000\npartition: iid\n",
    "a trillion neurons": "model: {name: mlp, hidden: [1000000000000]}\n",
    "neurons beyond a word": "model: {name: mlp, hidden: [10000000000000000000000]}\n",
    "layers that overflow": "model: {name: mlp, hidden: [4000000000, 4000000000]}\n",
    "a trillion channels": "model: {name: cnn, channels: [1000000000000]}\n",
    "a trillion users": "data: {name: synthetic, users: 1000000000000}\n",
    "users beyond a word": "data: {name: synthetic, users: 10000000000000000000000}\n",
    "a batch beyond a word": QUICK + "training: {batch: 10000000000000000000000000000}\n",
    "a seed beyond a word": QUICK + "seed: 100000000000000000000000000000000000\n",
    "a survey beyond a word": QUICK + "survey: {examples: 100000000000000000000000000000}\n",
    "examples beyond a word": QUICK + "partition: {name: dirichlet, min_examples: 100000000000000000000000000000}\n",
    "delays whose sum is not finite": QUICK + "delays: {name: constant, mean: 1e308}\n",
    "a step beyond single precision": QUICK + "strategy: {name: fedadam, lr: 1e308}\n",
    "a square beyond double precision": QUICK + "strategy: {name: fedadam, tau: 1e308}\n",
    "a share without end": QUICK + "strategy: {name: fedavg, over_select: .inf}\n",
}

CHANGES: dict[str, str] = {
    "a list of itself": "faults=&a [*a]",
    "a billion": "delays.means=*a",
    "no truth": "clients=!!bool x",
    "no timestamp": "clients=!!timestamp x",
    "5,000 digits": f"clients={DIGITS}",
    "a hexadecimal of 5,000 digits": f"seed=0x{DIGITS}",
    "a thousand brackets": "clients=" + "[" * 5000,
    "a folder of an unknown user": "data={name: npz, folder: ~nouser/x}",
    "a NUL": 'data={name: npz, folder: "a\\0b"}',
    "terminal codes": "\x1b[2J=1",
    "a trillion neurons": "model={name: mlp, hidden: [1000000000000]}",
    "a mapping for a name": "strategy.name={a: b}",
    "a setting of a list": "faults.0=1",
    "a setting of a choice of none": "target.metric=acc",
}
