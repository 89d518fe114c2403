"""Where Celery finds the modules of tasks. Measuring processes load this without the connection to Redis."""

from __future__ import annotations

from typing import Any

from celery.loaders.app import AppLoader


class InstalledModules(AppLoader):  # type: ignore[misc]
    """Imports tasks from where Python finds the farm. Celery's own loader looks in the current folder first."""

    def import_from_cwd(self, module: str, imp: Any = None, package: str | None = None) -> Any:
        return self.import_module(module, package=package)
