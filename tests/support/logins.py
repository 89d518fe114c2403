"""Logins of Postgres, as somebody with a password tries them."""

from __future__ import annotations

from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError

from farm.db.engine import make_engine


def logs_in(database_url: str, role: str, password: str) -> bool:
    url = make_url(database_url).set(username=role, password=password).render_as_string(hide_password=False)
    tried = make_engine(url, application="test", pool_size=1)
    try:
        with tried.connect():
            return True
    except OperationalError:
        return False
    finally:
        tried.dispose()
