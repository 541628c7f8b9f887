"""YAML as experiment files need it: values written out, nothing that costs more to read than to write.

Every error is a yaml.YAMLError that knows its line, whatever PyYAML's own constructors stumble over.
"""

from __future__ import annotations

from typing import Any

import yaml

from offbeat.experiment.spec.serialization import MAX_INTEGER


class Reader(yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """A dozen nested aliases are a billion values, one of itself is endless: none is followed."""
        if self.check_event(yaml.AliasEvent):
            event = self.get_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(
                None, None, f"*{event.anchor} stands for another value: write it out", event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            made = super().construct_object(node, deep)
        # !!bool x, !!timestamp x, 2020-99-99, an integer of 5,000 digits
        except (ValueError, LookupError, AttributeError):
            raise self._refusal(node) from None
        if isinstance(made, int) and abs(made) >= MAX_INTEGER:  # Python does not even print one of 5,000 digits
            raise self._refusal(node)
        return made

    def _refusal(self, node: yaml.Node) -> yaml.YAMLError:
        text = str(node.value)
        shown = text if len(text) <= 40 else f"{text[:37]}..."
        kind = node.tag.rpartition(":")[2]
        return yaml.constructor.ConstructorError(None, None, f"{shown!r} cannot be read as {kind}", node.start_mark)


def read(text: str) -> Any:
    """What the text says. Errors: yaml.YAMLError, and RecursionError for a thousand brackets."""
    return yaml.load(text, Loader=Reader)
