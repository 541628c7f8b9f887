"""The keyword options that simulate and compare share."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest

import offbeat
from experiment import messages
from offbeat.api.world_options import WorldKeywords, WorldOptions


def test_type_checkers_see_the_fields_with_their_types():
    assert WorldKeywords.__annotations__.keys() == WorldOptions.__annotations__.keys()
    checked = {name: hint.__forward_arg__ for name, hint in WorldKeywords.__annotations__.items()}
    assert checked == WorldOptions.__annotations__


@pytest.mark.parametrize("function", [offbeat.simulate, offbeat.compare])
def test_signature_and_help_list_every_option_with_its_default(function: Any):
    parameters = inspect.signature(function).parameters
    assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    described = inspect.getdoc(function).splitlines()
    for option in fields(WorldOptions):
        assert parameters[option.name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[option.name].default == option.default
        assert any(line.startswith(f"{option.name}: ") for line in described)


@pytest.mark.parametrize(("name", "keyword", "hint"), messages.KEYWORDS)
def test_an_unknown_keyword_is_rejected_with_the_nearest_name(name: str, keyword: str, hint: str):
    with messages.expect(f"^{name}(): unknown keyword argument {keyword!r}: {hint}", error=TypeError):
        getattr(offbeat, name)(None, None, "fedavg", **{keyword: 1})
