"""Place of the embedded Postgres' data, and its account.

Postgres refuses to run as root. For root it runs as an account without rights, which must reach the data and the binaries. The
permissions of existing folders stay: if the account cannot reach the home or the wheel, the data or a copy of the binaries go to
another place.
"""

from __future__ import annotations

import os
import pwd
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from farm.errors import EmbeddedServiceFailed
from farm.services.home import Home, read_json, write_json
from farm.services.processes import Account
from farm.services.server_binaries import PostgresBinaries, copied_for, output_of, postgres_of_wheel

STORES = (Path("/var/lib/gemm-farm"), Path("/var/tmp/gemm-farm"))
"""Alternative places of data and binaries, in this order."""

ACCOUNTS = ("postgres", "nobody")
"""Accounts to use instead of root: the first that exists."""

SOCKET = ".s.PGSQL.5432.lock"
"""The longest file name in the socket's folder: the socket's own with `.lock`."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A database cluster: its folders, and the account that owns them (None: our own)."""

    home: Home
    base: Path
    user: Account | None

    @property
    def data(self) -> Path:
        return self.base / "data"

    @property
    def sockets(self) -> Path:
        return self.home.short_folder(self.base / "socket", SOCKET, self.user)

    def binaries(self) -> PostgresBinaries:
        """The wheel's Postgres, or a copy of it that the account can execute."""
        wheel = postgres_of_wheel()
        if wheel.version(self.user) is not None:
            return wheel
        if self.user is None:
            raise EmbeddedServiceFailed(
                service="Postgres", why=f"{wheel.postgres} cannot be executed", log=self.home.log("postgres")
            )
        return copied_for(self.user, wheel, _store(self.home))


def find_cluster(home: Home) -> Cluster | None:
    """The cluster of this home; None if it has none yet. Changes nothing."""
    inside = home.path / "postgres"
    if inside.is_dir():
        return Cluster(home, inside, _owner(inside))
    note = read_json(home.path / "postgres.json") or {}
    base = Path(str(note.get("cluster", "")))
    if note.get("home") == str(home.path) and base.is_absolute() and base.is_dir():
        return Cluster(home, base, _owner(base))
    return None


def place_cluster(home: Home) -> Cluster:
    """The existing or new cluster of this home. Creates its folder, but not the data."""
    if (found := find_cluster(home)) is not None:
        return found
    user = account_for_postgres()
    inside = home.path / "postgres"
    if user is None or output_of(["/bin/sh", "-c", 'cd -- "$1" && echo reached', "sh", str(home.path)], user):
        home.make_private(inside, user)
        return Cluster(home, inside, user)
    base = _store(home) / home.key
    if base.exists():
        # The cluster of an earlier home with this path, whose note is gone. Data are never removed automatically.
        base.rename(base.with_name(f"{home.key}-until-{time.strftime('%Y%m%d-%H%M%S')}"))
    home.make_private(base, user)
    write_json(home.path / "postgres.json", {"home": str(home.path), "cluster": str(base)})
    return Cluster(home, base, user)


def remove_cluster(home: Home) -> None:
    """Removes a stopped cluster with its data, and the folder of its sockets."""
    if (cluster := find_cluster(home)) is not None:
        shutil.rmtree(cluster.sockets, ignore_errors=True)
        shutil.rmtree(cluster.base)
    (home.path / "postgres.json").unlink(missing_ok=True)


def account_for_postgres() -> Account | None:
    """The account of Postgres: None for the present one, or for root an account without rights."""
    if os.getuid() != 0:
        return None
    for name in ACCOUNTS:
        try:
            return _user(pwd.getpwnam(name))
        except KeyError:
            continue
    raise EmbeddedServiceFailed(
        service="Postgres",
        why=f"it refuses to run as root, and this machine has none of the accounts {', '.join(ACCOUNTS)}; "
        "run as another user, or set FARM_DATABASE_URL",
        log="not written yet",
    )


def _owner(base: Path) -> Account | None:
    """The account that a cluster belongs to: for root, that of its folder."""
    uid = base.stat().st_uid
    if os.getuid() != 0 or uid == 0:
        return account_for_postgres()
    try:
        return _user(pwd.getpwuid(uid))
    except KeyError:
        return Account(str(uid), uid, base.stat().st_gid)


def _user(entry: pwd.struct_passwd) -> Account:
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _store(home: Home) -> Path:
    """The first of the stores that can be written. In a folder open to all, only one that is root's own is used."""
    for store in STORES:
        try:
            store.mkdir()
            store.chmod(0o755)  # whatever the umask: Postgres's account must enter it
        except FileExistsError:
            pass
        except OSError:
            continue
        if not store.is_symlink() and store.stat().st_uid == os.getuid() and os.access(store, os.W_OK):
            return store
    raise EmbeddedServiceFailed(
        service="Postgres",
        why=f"its account cannot reach {home.path}, and {' and '.join(map(str, STORES))} cannot be written; "
        "set FARM_HOME to a folder that other accounts can enter",
        log=home.log("postgres"),
    )
