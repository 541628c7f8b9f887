"""offbeat list: what there is to choose from, and what the settings of one of them are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from offbeat.cli.completion import kinds, names_of_kind
from offbeat.cli.shared_options import Json

# kind -> the word for one of them
WHAT = {
    "strategies": "strategy",
    "presets": "preset",
    "datasets": "data set",
    "models": "model",
    "delays": "delays",
    "networks": "network",
    "availability": "availability",
    "faults": "faults",
    "partitions": "partition",
    "streams": "streaming",
    "losses": "loss",
}
WORLDS = "docs/worlds.md"
PAGES = {
    "presets": "docs/presets.md",
    "datasets": "docs/data.md",
    "partitions": "docs/data.md",
    **dict.fromkeys(("delays", "networks", "availability", "faults", "streams"), WORLDS),
}
TOGETHER = {"global": "local"}  # strategies that share a page


def list_names(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND", help=f"{', '.join(WHAT)} [default: how many there are of each].", autocompletion=kinds
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One of them: its settings.", autocompletion=names_of_kind)
    ] = None,
    as_json: Json = False,
) -> None:
    """List what there is to choose from, or the settings of one: offbeat list strategies fedbuff."""
    from offbeat.cli.terminal import print_json, print_table

    if what is None:
        counts = {kind: len(registry(kind)) for kind in WHAT}
        if as_json:
            print_json([{"what": kind, "how many": count} for kind, count in counts.items()])
        else:
            print_table([["what", "how many"], *([kind, str(count)] for kind, count in counts.items())])
        return
    _refuse_unknown(what, name)
    if name is not None:
        told = _preset(name) if what == "presets" else _one(what, name)
        if as_json:
            print_json(told)
        else:
            _print_one(told)
        return
    entries = _strategies() if what == "strategies" else _summaries(what)
    entries += [{**dict.fromkeys(entries[0]), **entry} for entry in _of_packages(what)]
    if as_json:
        print_json(entries)
        return
    titles = {"keeps": "server keeps per client", "uploads": "client uploads", "summary": "what it is"}
    if what == "strategies":
        titles["summary"] = "paper"
    headings = [titles.get(key, key) for key in entries[0]]
    cells = (["" if value is None else str(value) for value in entry.values()] for entry in entries)
    print_table([headings, *cells], left=True)


def _refuse_unknown(what: str, name: str | None) -> None:
    from offbeat.core.errors import ConfigError, unknown

    if what not in WHAT:
        homes = [kind for kind in WHAT if what in registry(kind)]
        if homes:
            meant = " or ".join(f"'offbeat list {kind} {what}'" for kind in homes)
            raise ConfigError(f"unknown list {what!r}: did you mean {meant}?")
        raise unknown("list", what, WHAT)
    if name is not None and name not in registry(what):
        raise unknown(WHAT[what], name, registry(what))


def registry(what: str) -> Mapping[str, Any]:
    """Name -> class; presets are made when they are asked for."""
    if what == "presets":
        from offbeat import presets

        return dict.fromkeys(presets.names())
    from offbeat.experiment.spec.choices import CHOICES

    return CHOICES["data" if what == "datasets" else WHAT[what]]


def _strategies() -> list[dict[str, Any]]:
    """What each says about itself, and the paper its file opens with."""
    return [_strategy(name, cls) for name, cls in registry("strategies").items()]


def _strategy(name: str, cls: Any) -> dict[str, Any]:
    from offbeat.core.about import paper_of, year_of

    about, paper = getattr(cls, "about", None), paper_of(cls)  # of one's own it may say nothing
    told = {key: getattr(about, key, None) for key in ("mode", "keeps", "uploads")}
    return {"name": name, "year": year_of(paper), **told, "summary": paper}


def _of_packages(what: str) -> list[dict[str, Any]]:
    """What installed packages bring, without loading them."""
    from offbeat.experiment.spec import entry_points
    from offbeat.experiment.spec.choices import CHOICES

    setting = next((setting for setting, group in entry_points.GROUPS.items() if group == f"offbeat.{what}"), None)
    names = [] if setting is None else entry_points.names(setting, CHOICES[setting])
    return [{"name": n, "summary": f"of the package {entry_points.package_of(str(setting), n)}"} for n in names]


def _summaries(what: str) -> list[dict[str, Any]]:
    from offbeat.scenario.names import summaries

    if what == "presets":
        from offbeat import presets

        found = {name: presets.load(name).summary for name in presets.names()}
    else:
        found = summaries(registry(what))
    return [{"name": name, "summary": text} for name, text in found.items()]


def _one(what: str, name: str) -> dict[str, Any]:
    """What is told of one: about it, its settings, and where more is written."""
    from inspect import getdoc

    from offbeat.experiment.spec.setting_docs import settings

    cls = registry(what)[name]
    if what == "strategies":
        about, page = _strategy(name, cls), f"docs/strategies/{TOGETHER.get(name, name)}.md"
    else:
        about, page = {"name": name, "summary": getdoc(cls) or ""}, PAGES.get(what, "")
    return {**about, "settings": [setting.plain() for setting in settings(cls)], "page": page}


def _preset(name: str) -> dict[str, Any]:
    from offbeat import presets
    from offbeat.experiment.spec.setting_docs import changes

    preset = presets.load(name)
    compared = preset.compared or tuple(preset.methods)
    return {
        "name": name,
        "summary": preset.summary,
        "methods": {method: changes(strategy) for method, strategy in preset.methods.items()},
        "compared": list(compared),
        "seeds": preset.seeds,
        "reference": preset.reference if preset.reference in compared else compared[0],
        "scales": presets.scales(name),
        "page": PAGES["presets"],
    }


def _print_one(told: dict[str, Any]) -> None:
    from offbeat.cli.terminal import print_table, say
    from offbeat.experiment.spec.setting_docs import written

    for line in str(told["summary"]).splitlines():
        say(line)
    facts = {"mode": "mode", "keeps": "server keeps per client", "uploads": "client uploads", "scales": "scales"}
    facts |= {"compared": "compared", "seeds": "seeds", "reference": "reference"}
    for key, title in facts.items():
        if told.get(key):
            value = told[key]
            say(f"{title}: {', '.join(value) if isinstance(value, list) else value}")
    if "methods" in told:
        say("")
        rows = [[method, written(given) if given else "as it comes"] for method, given in told["methods"].items()]
        print_table([["method", "its settings here"], *rows], left=True)
    elif told["settings"]:
        for setting in told["settings"]:
            _print_setting(setting)
    else:
        say("it has no settings")
    if told["page"]:
        say("")
        say(f"more: {told['page']}")
    if "methods" in told:
        say(f"the experiment: offbeat run {told['name']} --dry-run")


def _print_setting(setting: dict[str, str | None]) -> None:
    """Its default, then what it is and may be: prose, in lines that fit."""
    import textwrap

    from rich.console import Console

    from offbeat.cli.terminal import say

    default = setting["default"]
    say("")
    say(f"{setting['name']}: {'(must be given)' if default is None else default}")
    for text in (setting["meaning"], f"[{setting['allowed']}]"):
        for line in textwrap.wrap(text or "", min(Console().width, 110) - 4):
            say(f"    {line}")
