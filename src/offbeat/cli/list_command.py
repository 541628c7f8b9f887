"""The command `offbeat list`: list the available names, or the settings of one of them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from inspect import getdoc
from typing import Annotated, Any

import typer
from rich.console import Console

from offbeat import presets, scenario
from offbeat.cli import shared_options as options
from offbeat.cli.completion import complete_kind, complete_name
from offbeat.cli.terminal import print_json, print_table, say
from offbeat.core import about
from offbeat.core.errors import ConfigError, unknown_name
from offbeat.experiment import spec

Description = dict[str, Any]  # a JSON object; its keys depend on the kind
# kind -> singular
KINDS = {
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
PAGES = {
    "presets": "docs/presets.md",
    "datasets": "docs/data.md",
    "partitions": "docs/data.md",
    **dict.fromkeys(("delays", "networks", "availability", "faults", "streams"), "docs/worlds.md"),
}
SHARED_PAGES = {"global": "local"}  # strategy -> strategy whose page describes both
FACT_TITLES = {
    "mode": "mode",
    "keeps": "server keeps per client",
    "uploads": "client uploads",
    "scales": "scales",
    "compared": "compared",
    "seeds": "seeds",
    "reference": "reference",
}


def list_names(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND",
            help=f"{', '.join(KINDS)} [default: the number of names of each kind].",
            autocompletion=complete_kind,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Print the settings of this name.", autocompletion=complete_name),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List the available names of a kind, or the settings of one name: offbeat list strategies fedbuff."""
    if what is None:
        counts = {kind: len(registry(kind)) for kind in KINDS}
        if as_json:
            print_json([{"what": kind, "how many": count} for kind, count in counts.items()])
        else:
            print_table([["what", "how many"], *([kind, str(count)] for kind, count in counts.items())])
        return
    _check_names(what, name)
    if name is not None:
        description = describe(what, name)
        if as_json:
            print_json(description)
        else:
            _print_description(description)
        return
    entries = _list_entries(what)
    entries += [{**dict.fromkeys(entries[0]), **entry} for entry in _package_entries(what)]
    if as_json:
        print_json(entries)
        return
    titles = {**FACT_TITLES, "summary": "paper" if what == "strategies" else "description"}
    headings = [titles.get(key, key) for key in entries[0]]
    cells = (["" if value is None else str(value) for value in entry.values()] for entry in entries)
    print_table([headings, *cells], left=True)


def registry(what: str) -> Mapping[str, Any]:
    """Map the names of a kind to classes; presets, which are made on demand, map to None."""
    if what == "presets":
        return dict.fromkeys(presets.names())
    return spec.CHOICES["data" if what == "datasets" else KINDS[what]]


def describe(what: str, name: str) -> Description:
    """Describe one name: its summary, its settings and its documentation page."""
    if what == "presets":
        return _describe_preset(name)
    cls = registry(what)[name]
    if what == "strategies":
        entry, page = _strategy_entry(name, cls), f"docs/strategies/{SHARED_PAGES.get(name, name)}.md"
    else:
        entry, page = {"name": name, "summary": getdoc(cls) or ""}, PAGES.get(what, "")
    return {**entry, "settings": [setting.to_values() for setting in spec.describe_settings(cls)], "page": page}


def _check_names(what: str, name: str | None) -> None:
    """Reject an unknown kind or name, and suggest the command that was probably meant."""
    if what not in KINDS:
        kinds = [kind for kind in KINDS if what in registry(kind)]
        if kinds:
            commands = " or ".join(f"'offbeat list {kind} {what}'" for kind in kinds)
            raise ConfigError(f"unknown list {what!r}: did you mean {commands}?")
        raise unknown_name("list", what, KINDS)
    if name is not None and name not in registry(what):
        raise unknown_name(KINDS[what], name, registry(what))


def _strategy_entry(name: str, cls: type) -> Description:
    """Describe a strategy by its class attribute `about`, which is optional, and the paper in its file's header."""
    properties, paper = getattr(cls, "about", None), about.paper_of(cls)
    facts = {key: getattr(properties, key, None) for key in ("mode", "keeps", "uploads")}
    return {"name": name, "year": about.year_of(paper), **facts, "summary": paper}


def _package_entries(what: str) -> list[Description]:
    """List the names that installed packages add, without loading them."""
    setting = next((key for key, group in spec.ENTRY_POINT_GROUPS.items() if group == f"offbeat.{what}"), None)
    names = [] if setting is None else spec.package_names(setting, spec.CHOICES[setting])
    return [{"name": n, "summary": f"from the package {spec.package_version(str(setting), n)}"} for n in names]


def _list_entries(what: str) -> list[Description]:
    """Return one line about each name of a kind."""
    if what == "strategies":
        return [_strategy_entry(name, cls) for name, cls in registry(what).items()]
    if what == "presets":
        texts = {name: presets.load(name).summary for name in presets.names()}
    else:
        texts = scenario.summaries(registry(what))
    return [{"name": name, "summary": text} for name, text in texts.items()]


def _describe_preset(name: str) -> Description:
    """Describe a preset: its methods with their settings, seeds and scales."""
    preset = presets.load(name)
    compared = preset.compared or tuple(preset.methods)
    return {
        "name": name,
        "summary": preset.summary,
        "methods": {method: spec.changed_settings(strategy) for method, strategy in preset.methods.items()},
        "compared": list(compared),
        "seeds": preset.seeds,
        "reference": preset.reference if preset.reference in compared else compared[0],
        "scales": presets.scales(name),
        "page": PAGES["presets"],
    }


def _print_description(description: Description) -> None:
    """Print the summary of a name, its facts, and its settings or methods."""
    for line in str(description["summary"]).splitlines():
        say(line)
    for key, title in FACT_TITLES.items():
        if value := description.get(key):
            say(f"{title}: {', '.join(value) if isinstance(value, list) else value}")
    if "methods" in description:
        say("")
        methods = description["methods"].items()
        rows = [[method, spec.to_yaml_line(settings) if settings else "defaults"] for method, settings in methods]
        print_table([["method", "settings"], *rows], left=True)
    elif description["settings"]:
        width = min(Console().width, 110) - 4
        for setting in description["settings"]:
            default = setting["default"]
            say("")
            say(f"{setting['name']}: {'(required)' if default is None else default}")
            for text in (setting["meaning"], f"[{setting['allowed']}]"):
                for line in textwrap.wrap(text or "", width):
                    say(f"    {line}")
    else:
        say("no settings")
    if description["page"]:
        say("")
        say(f"documentation: {description['page']}")
    if "methods" in description:
        say(f"experiment file: offbeat run {description['name']} --dry-run")
