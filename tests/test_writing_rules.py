"""Names and docstrings of the package follow the writing rules of CONTRIBUTING.md."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import offbeat

SOURCE = Path(offbeat.__file__).parent
ROOT = SOURCE.parent.parent

# Folders in which each sub-folder has files of the same names.
PARALLEL_FOLDERS = ("papers",)
# Nested public classes and a fixed name of the contract.
SHARED_CLASS_NAMES = {"State"}

# Fields of exported classes keep their names.
PUBLIC_FIELDS = {("api/run_comparison.py", "given"), ("api/simulation_result.py", "given")}

UNCLEAR_FUNCTION_NAMES = {"of", "plain", "read", "told", "parse"}
UNCLEAR_NAMES = {"told", "kept", "held", "given", "asked", "made", "own", "found", "one"}
METAPHORS = {
    "cargo",
    "comeback",
    "crew",
    "door",
    "footing",
    "guardian",
    "hearing",
    "house",
    "life",
    "parcel",
    "roster",
    "shelf",
    "story",
    "teller",
}
FORBIDDEN_FILE_WORDS = {
    "abstract",
    "base",
    "common",
    "factory",
    "helper",
    "helpers",
    "legacy",
    "manager",
    "misc",
    "util",
    "utils",
}

DOCSTRING_OPENINGS = re.compile(r"(What|Of|How|Who|Whose|Whether|As|Is|Where|When|Which)\b")
UNCLEAR_WORDS = re.compile(r"\b(whoever|somebody|nobody|is told|are told)\b", re.IGNORECASE)
STRATEGY_HEADER = re.compile(r"Paper: ")


def label(path: Path) -> str:
    """Return a path relative to the package."""
    return path.relative_to(SOURCE).as_posix()


@cache
def trees() -> dict[Path, ast.Module]:
    """Parse every source file once."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each docstring; headers of strategies have their own form."""
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                text = ast.get_docstring(node)
                if text and not STRATEGY_HEADER.match(text):
                    yield f"{label(path)}:{getattr(node, 'lineno', 1)}", text


def identifiers() -> Iterator[tuple[str, str]]:
    """Yield the place and the name of each definition: classes, functions, arguments, variables, attributes."""
    for path, tree in trees().items():
        for node in ast.walk(tree):
            name = None
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = node.name
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                name = node.attr
            elif isinstance(node, ast.arg):
                name = node.arg
            elif isinstance(node, ast.alias):
                name = node.asname
            if name is not None:
                yield f"{label(path)}:{getattr(node, 'lineno', 1)}", name


def repeated(places: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the names that have more than one place."""
    return {name: where for name, where in places.items() if len(where) > 1}


def test_no_file_name_is_used_twice():
    places: dict[str, list[str]] = defaultdict(list)
    for path in trees():
        parts = path.relative_to(SOURCE).parts
        if path.stem not in ("__init__", "__main__") and not (parts[0] in PARALLEL_FOLDERS and len(parts) > 2):
            places[path.stem].append(label(path))
    assert repeated(places) == {}


def test_no_public_class_name_is_used_twice():
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name[0] != "_" and node.name not in SHARED_CLASS_NAMES:
                places[node.name].append(f"{label(path)}:{node.lineno}")
    assert repeated(places) == {}


def test_public_functions_have_a_verb_and_an_object():
    unclear = [
        f"{label(path)}:{node.lineno} {node.name}"
        for path, tree in trees().items()
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name in UNCLEAR_FUNCTION_NAMES
    ]
    assert unclear == []


def test_identifiers_describe_their_value():
    unclear = [
        f"{place} {name}"
        for place, name in identifiers()
        if name.strip("_").lower() in UNCLEAR_NAMES and (place.split(":")[0], name) not in PUBLIC_FIELDS
    ]
    assert unclear == []


def test_identifiers_are_no_metaphors():
    unclear = [f"{place} {name}" for place, name in identifiers() if set(name.lower().split("_")) & METAPHORS]
    assert unclear == []


def test_file_names_say_what_the_file_contains():
    unclear = [label(path) for path in trees() if FORBIDDEN_FILE_WORDS & set(path.stem.lower().split("_"))]
    assert unclear == []


def test_docstrings_begin_with_a_complete_sentence():
    """The first line starts with a capital letter or a code name, not with a question word, and ends with a stop."""
    unclear = []
    for place, text in docstrings():
        first = text.split("\n", 1)[0].rstrip()
        begins_well = (first[0].isupper() or first[0] == "`") and not DOCSTRING_OPENINGS.match(first)
        if not begins_well or not first.endswith((".", ":")):
            unclear.append(f"{place} {first}")
    assert unclear == []


def test_source_text_names_its_subjects():
    unclear = [
        f"{label(path)}:{number} {match[0]}"
        for path in trees()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if (match := UNCLEAR_WORDS.search(line))
    ]
    assert unclear == []


def test_any_is_rare():
    """Lower this number when uses disappear."""
    uses = sum(isinstance(node, ast.Name) and node.id == "Any" for tree in trees().values() for node in ast.walk(tree))
    assert uses <= 150


def test_lines_of_documents_have_at_most_120_characters():
    """Tables, links on their own line, code blocks and generated pages are exempt: Markdown cannot break them."""
    generated = ("bench/RESULTS.md", "docs/reproductions/", "docs/reference/")
    too_long = []
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        label = path.relative_to(ROOT).as_posix()
        if label.startswith(generated):
            continue
        in_code = False
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            in_code ^= line.lstrip().startswith("```")
            if len(line) > 120 and not in_code and not line.lstrip().startswith(("|", "[", "![")):
                too_long.append(f"{label}:{number}")
    assert too_long == []


def test_the_rules_find_what_they_forbid():
    assert DOCSTRING_OPENINGS.match("Of a job it is put on the clock how it will end.")
    assert DOCSTRING_OPENINGS.match("Ask the worker for results.") is None
    assert UNCLEAR_WORDS.search("for whoever asks")
    assert repeated({"a": ["x.py", "y.py"], "b": ["z.py"]}) == {"a": ["x.py", "y.py"]}
