"""Which files of a directory are not worth reading."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORED_DIRECTORIES = frozenset({"node_modules", "__pycache__", "venv", "site-packages"})
_MAX_GITIGNORE_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The `.gitignore` files that apply in a directory, outermost first.

    Attributes:
        specs: Each with the directory its patterns are relative to.
    """

    specs: tuple[tuple[Path, GitIgnoreSpec], ...] = ()

    @classmethod
    def above(cls, directory: Path) -> IgnoreRules:
        """Return the rules of the repository that a directory lies in, without its own."""
        parents = list(directory.parents)
        for number, parent in enumerate([directory, *parents]):
            if (parent / ".git").exists():
                rules = cls()
                for outer in reversed(parents[:number]):
                    rules = rules.entering(outer)
                return rules
        return cls()

    def entering(self, directory: Path) -> IgnoreRules:
        """Return these rules and those of the directory's own `.gitignore`, if it has one."""
        file = directory / ".gitignore"
        try:
            with file.open("rb") as stream:
                lines = stream.read(_MAX_GITIGNORE_BYTES).decode("utf-8", "replace").splitlines()
        except OSError:
            return self
        from pathspec import GitIgnoreSpec

        return IgnoreRules((*self.specs, (directory, GitIgnoreSpec.from_lines(lines))))

    def ignore(self, path: Path, *, is_directory: bool) -> bool:
        """Tell whether git would ignore a path; the innermost file that says something decides."""
        for directory, spec in reversed(self.specs):
            name = path.relative_to(directory).as_posix() + ("/" if is_directory else "")
            decision = spec.check_file(name).include
            if decision is not None:
                return decision
        return False
