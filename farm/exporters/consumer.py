"""Tools that read files of the farm: which versions of them a file is made for."""

from __future__ import annotations

from dataclasses import dataclass

from farm.errors import OtherConsumerVersion


@dataclass(frozen=True, slots=True)
class Consumer:
    """A tool, and the versions that read the files.

    Attributes:
        package: The name of the package whose version counts.
        versions: The versions whose reader is known, the newest last.
    """

    package: str
    versions: tuple[str, ...]

    def checked(self, version: str | None) -> str:
        """The version to write for, by default the newest. Raises `OtherConsumerVersion`."""
        chosen = version or self.versions[-1]
        if chosen not in self.versions:
            raise OtherConsumerVersion(package=self.package, version=chosen, known=", ".join(self.versions))
        return chosen
