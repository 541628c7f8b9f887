"""Run the examples of the README in their order in one empty folder.

A Python block must run. In console and bash blocks, every line that starts with offbeat must succeed. Blocks marked
`no-run` (which take long or need other machines) and `make` are skipped. A text block after a Python block is its
output, except for numbers, because trained weights differ between machines.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from waiting import MAX_WAIT_SECONDS

README = Path(__file__).parent.parent / "README.md"
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```\s*$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d+(\.\d+)?")
SHELL = set("|&;<>$`")  # characters that need a shell


@dataclass(frozen=True)
class Block:
    info: str  # text after the opening fence
    body: str
    line: int

    @property
    def language(self) -> str:
        return (self.info.split() or [""])[0]

    @property
    def is_run(self) -> bool:
        return "no-run" not in self.info.split()


def blocks(text: str) -> list[Block]:
    return [Block(m["info"].strip(), m["body"], text[: m.start()].count("\n") + 1) for m in FENCE.finditer(text)]


def commands(block: Block) -> Iterator[str]:
    """Yield the lines that start with offbeat, with their continuations; a leading $ is the prompt."""
    for line in block.body.replace("\\\n", " ").splitlines():
        command = line.strip().removeprefix("$ ").strip()
        if command.startswith("offbeat "):
            yield command


@pytest.fixture(scope="module")
def readme() -> list[Block]:
    assert README.exists(), "there is no README.md"
    return blocks(README.read_text())


def test_the_readme_shows_python_and_commands(readme):
    assert any(b.language == "python" and b.is_run for b in readme), "README.md has no block of Python that is run"
    assert any(list(commands(b)) for b in readme if b.is_run), "README.md has no offbeat command that is run"


def test_the_readme_has_no_placeholders(readme):
    assert "@@" not in README.read_text()


def test_the_examples_of_the_readme_run(readme, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    names: dict[str, object] = {"__name__": "__main__"}
    for number, block in enumerate(readme):
        if not block.is_run:
            continue
        where = f"README.md line {block.line}"
        if block.language == "python":
            _save(block)
            printed = _python(block, names, capsys, where)
            following = readme[number + 1] if number + 1 < len(readme) else None
            if following is not None and following.language == "text" and following.is_run:
                assert _shape(printed) == _shape(following.body), f"{where} prints something else than shown"
        elif block.language in ("console", "bash", "sh", "shell"):
            for command in commands(block):
                _command(command, monkeypatch, where)


def _save(block: Block) -> None:
    """Save a block under the file name in its first line, such as `# my_strategy.py`."""
    first = block.body.split("\n", 1)[0].strip()
    if match := re.fullmatch(r"#\s*(\w+\.py)\b.*", first):
        Path(match[1]).write_text(block.body)


def _python(block: Block, names: dict[str, object], capsys: pytest.CaptureFixture[str], where: str) -> str:
    import torch

    capsys.readouterr()
    # an example may seed the global generator, which must not affect other tests
    with torch.random.fork_rng(devices=[]):
        exec(compile("\n" * block.line + block.body, where, "exec"), names)
    return capsys.readouterr().out


def _command(command: str, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    if SHELL & set(command):
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, timeout=MAX_WAIT_SECONDS
        )
        assert done.returncode == 0, f"{where}: {command}: {done.stderr}"
        return
    from offbeat.cli import main

    monkeypatch.setattr(sys, "argv", shlex.split(command, comments=True))
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code, f"{where}: {command}: exit status {ended.value.code}"


def _shape(text: str) -> list[str]:
    """Return the lines with all numbers replaced."""
    return [NUMBER.sub("0", line).strip() for line in text.strip().splitlines()]


# ---------------------------------------------------------------- the functions above


def test_blocks_and_commands_are_found():
    shown = "```bash\nmake test\n$ offbeat list \\\n  delays  # all\nls\n```\n"
    python, demo, shell = blocks("# x\n\n```python\nprint(1)\n```\n\n```console no-run\n$ make demo\n```\n" + shown)
    assert (python.language, python.body, python.line) == ("python", "print(1)\n", 3)
    assert (demo.language, demo.is_run) == ("console", False)
    assert [shlex.split(command, comments=True) for command in commands(shell)] == [["offbeat", "list", "delays"]]


def test_numbers_may_differ_but_words_may_not():
    assert _shape("acc 0.9425 after 1000 s") == _shape("acc 0.91 after 998 s")
    assert _shape("acc 0.9425 after 1000 s") != _shape("acc 0.9425 before 1000 s")
