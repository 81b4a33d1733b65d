"""Things by name that come with tvmstack or from a stranger's package, imported when they are asked for.

Ours are a table, so that a source tree works without being installed; strangers name theirs in an entry-point group.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from tvmstack.core.errors import SetupError, TvmstackError, UsageError, nearest

__all__ = ["Plugin", "Plugins"]

_log = logging.getLogger("tvmstack.plugins")
_OURS = "tvmstack"


@dataclass(frozen=True)
class Plugin:
    """Something that can be loaded.

    Attributes:
        name: what it is asked for by.
        place: "module:attribute".
        owner: the distribution that brings it.
    """

    name: str
    place: str
    owner: str

    @property
    def is_ours(self) -> bool:
        """Whether it comes with tvmstack."""
        return self.owner == _OURS

    def load(self) -> Any:
        """Import the module and return the attribute."""
        module, _, attribute = self.place.partition(":")
        return getattr(importlib.import_module(module), attribute)


class Plugins:
    """All things of one kind.

    Args:
        kind: what one of them is called in messages ("back end").
        group: the entry-point group of strangers.
        ours: name to "module:attribute".
        found: what lists a group's entry points.
    """

    def __init__(
        self,
        kind: str,
        group: str,
        ours: Mapping[str, str],
        found: Callable[[str], Iterable[EntryPoint]] | None = None,
    ) -> None:
        self.kind, self.group = kind, group
        self._ours = {name: Plugin(name, place, _OURS) for name, place in ours.items()}
        self._found = found or (lambda group: entry_points(group=group))
        self._warned: set[str] = set()

    def names(self) -> tuple[str, ...]:
        """Return every name, ours first; nothing is imported."""
        return tuple(self._all())

    def find(self, name: str) -> Plugin:
        """Return what a name means; nothing is imported.

        Raises:
            UsageError: nothing has this name.
            SetupError: two packages claim it.
        """
        owners = self._all().get(name)
        if owners is None:
            raise UsageError(f"there is no {self.kind} {name!r}; {nearest(name, self._all())}")
        if len(owners) > 1:
            both = " and ".join(p.owner for p in owners)
            raise SetupError(f"{self.kind} {name!r} is claimed by two packages, {both}: uninstall one of them")
        return owners[0]

    def load(self, name: str) -> Any:
        """Import what a name means.

        Raises:
            UsageError, SetupError: see `find`; SetupError also where the import fails.
        """
        plugin = self.find(name)
        try:
            return plugin.load()
        except TvmstackError:
            raise
        except Exception as err:  # the border to a stranger's module, which may raise anything
            words = (str(err).strip() or type(err).__name__).splitlines()[0]
            raise SetupError(
                f"{self.kind} {name!r} of package {plugin.owner} cannot be loaded ({plugin.place}): {words}"
            ) from err

    def load_all(self) -> dict[str, Any]:
        """Import everything that can be; what cannot is one warning each and left out."""
        loaded = {}
        for name in self.names():
            try:
                loaded[name] = self.load(name)
            except TvmstackError as err:
                self.warn(str(err))
        return loaded

    def warn(self, words: str) -> None:
        """Log a warning, once in the process."""
        if words not in self._warned:
            self._warned.add(words)
            _log.warning("%s", words)

    def _all(self) -> dict[str, list[Plugin]]:
        """Return who claims each name. One of ours keeps its name: a stray package must not break artifacts."""
        claims = {name: [plugin] for name, plugin in self._ours.items()}
        for point in sorted(self._found(self.group), key=lambda p: p.name):
            owner = point.dist.name if point.dist is not None else "?"
            plugin = Plugin(point.name, point.value.replace(" ", ""), owner)
            if point.name in self._ours:
                self.warn(f"{self.kind} {point.name!r} of package {owner} is left out: tvmstack has one of that name")
            elif plugin not in claims.setdefault(point.name, []):
                claims[point.name].append(plugin)
        return claims
