"""YAML as experiment files use it. This module needs PyYAML, so it is imported only when YAML is read or written.

Errors in a text are ConfigErrors with the number of the line.
"""

from __future__ import annotations

import yaml

from offbeat.core.errors import ConfigError
from offbeat.experiment.spec.serialization import MAX_INTEGER


class Loader(yaml.SafeLoader):
    """A loader that rejects aliases and reports unreadable scalars with their line."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Reject aliases: a dozen nested ones can represent a billion values, and recursive ones never end."""
        if self.check_event(yaml.AliasEvent):
            event = self.get_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(
                None, None, f"aliases such as *{event.anchor} are not allowed: write the value out", event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        """Convert errors of PyYAML's constructors, such as for 2020-99-99, and reject huge integers."""
        try:
            value = super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):
            raise self._error(node) from None
        if isinstance(value, int) and abs(value) >= MAX_INTEGER:  # Python does not even print 5,000 digits
            raise self._error(node)
        return value

    def _error(self, node: yaml.Node) -> yaml.YAMLError:
        """Build the error for a scalar that cannot be read."""
        text = str(node.value)
        text = text if len(text) <= 40 else f"{text[:37]}..."
        kind = node.tag.rpartition(":")[2]
        return yaml.constructor.ConstructorError(None, None, f"{text!r} cannot be read as {kind}", node.start_mark)


def parse_yaml(text: str, where: str) -> object:
    """Parse a YAML document; `where` names it in errors."""
    try:
        return yaml.load(text, Loader=Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{where}{line}: invalid YAML ({getattr(error, 'problem', None) or 'unreadable'})") from None
    except RecursionError:
        raise ConfigError(f"{where}: invalid YAML (brackets are nested too deeply)") from None


def dump_yaml(values: object) -> str:
    """Format plain values as a YAML document; raise ConfigError for other objects."""
    try:
        text: str = yaml.safe_dump(values, sort_keys=False, default_flow_style=None, width=120)
    except yaml.YAMLError as error:
        raise ConfigError(f"cannot be written as YAML: {error}") from None
    return text


def to_yaml_line(values: object) -> str:
    """Format plain values in one line, as an experiment file would."""
    text: str = yaml.safe_dump(values, default_flow_style=True, width=10_000, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")
