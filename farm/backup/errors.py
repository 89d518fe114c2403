"""Errors of backups. The docstring of an error is its message: see `farm.errors`."""

from __future__ import annotations

from farm.errors import BadInput, ServiceUnavailable


class NotABackup(BadInput):
    """{folder} is not a complete backup: {why}. `farm backup create` writes {manifest} last, so a backup without it did not end. Take a new one."""


class BackupDamaged(BadInput):
    """The backup {folder} is damaged: {why}. Nothing was restored. Use another backup."""


class BackupIsNewer(BadInput):
    """The backup {folder} is of a newer version of the farm ({version}): its {what} is {found}, and this version knows {what}s up to {known}. Install the newer version on this machine. Nothing was restored."""


class BackupTooOld(BadInput):
    """The backup {folder} is at revision {found}, and this version restores revisions from {first} on. Nothing was restored."""


class TargetNotEmpty(BadInput):
    """The database {url} has tables already, such as {table}. Nothing was written. Name an empty database, or for an embedded one set FARM_HOME to a new folder."""


class RegistryThere(BadInput):
    """{path} is there already, and the backup has a registry of models. Nothing was restored. Set FARM_HOME to a new folder, or move that one away."""


class RestoreDiffers(ServiceUnavailable):
    """The table {table} has {found} after loading, and {expected} before. Nothing was written. Try again, and report a defect of the farm if this repeats."""


class FolderUnusable(BadInput):
    """The backup cannot be written to {folder}: {why}. No backup was taken."""


class CannotMove(BadInput):
    """The farm was not moved: {why}"""


class StillInUse(ServiceUnavailable):
    """The farm was not moved, because other programs use its database: {who}. Stop them (`farm down`, and every farm serve, farm watch and farm-worker of this home), then try again. Nothing was changed."""


class TableUnusable(ServiceUnavailable):
    """The rows of the table {table} cannot be {how}: {why}. Nothing was kept of it. Remove the cause, then try again."""
