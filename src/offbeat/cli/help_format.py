"""How verbs print their help: as it was written.

typer escapes brackets for rich also where rich is not used, and newer clicks forget what an argument of typer's is
for; both are mended here, and change nothing where they are right already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

import click
import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.models import ArgumentInfo

Function = TypeVar("Function", bound=Callable[..., Any])


class Verb(TyperCommand):
    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        function = getattr(self.callback, "__wrapped__", None)
        hints = get_type_hints(function, include_extras=True) if function is not None else {}
        for argument in self.params:
            if isinstance(argument, TyperArgument) and not argument.help:
                told = getattr(hints.get(argument.name or ""), "__metadata__", ())
                argument.help = next((each.help for each in told if isinstance(each, ArgumentInfo)), None)

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Of newer clicks; typer has written them already."""

    def get_help(self, ctx: click.Context) -> str:
        return unescaped(super().get_help(ctx))


class Verbs(TyperGroup):
    def get_help(self, ctx: click.Context) -> str:
        return unescaped(super().get_help(ctx))


class App(typer.Typer):
    """Every verb of it is a Verb."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=Verbs, rich_markup_mode=None, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        return super().command(name, cls=Verb, **settings)


def unescaped(text: str) -> str:
    return text.replace("\\[", "[")
