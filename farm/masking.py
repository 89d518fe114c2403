"""Masks passwords and tokens in messages, logs and tracebacks as `***`.

Text is masked where it leaves the farm, because errors of libraries contain URLs and connection strings. If a password has an
unescaped `@` or `/`, more than the password may be masked.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

_NAMES = r"(?:pass(?:word|wd|phrase|code)?|pwd|secret(?:[_-]?key)?|(?:api|access)[_-]?key)"

# redis://:secret@host, postgresql://ann:se@cret@host; not the `password` of an example in a message.
_USER_AND_PASSWORD = re.compile(r"(//[^\s:/?#@]*):(?!password@)\S*@")
# http://secret:x@host, http://secret@host and redis://secret@host: a token as user, or a password without its colon.
_ALONE = re.compile(r"\b(https?://(?=[^\s/?#@]+@)|(?:rediss?|redis\+socket|unix)://(?=[^\s:/?#@]+@))[^\s/?#@]+@")
_PARAMETER = re.compile(r"([?&;])([^=&#\s?;]+)=([^&#\s]*)")
_SECRET_PARAMETER = re.compile(rf"{_NAMES}$|(?:token|signature|credential|^sig)$", re.IGNORECASE)
# host=db password='it''s' sslpassword = x; FARM_API_TOKEN=x; {"password": "x"}
_QUOTED = r"""'(?:\\.|''|[^'\\])*'|"(?:\\.|[^"\\])*\""""
_KEYWORD = re.compile(rf"(?<![?&;\w])(\w*{_NAMES}\s*=\s*)({_QUOTED}|[^\s,;&)]+)", re.IGNORECASE)
_VARIABLE = re.compile(rf"\b([A-Z_]*_TOKEN=)({_QUOTED}|[^\s,;]+)")
_MEMBER = re.compile(rf"""(["']\w*{_NAMES}["']\s*:\s*)(?:{_QUOTED})""", re.IGNORECASE)
_HEADER = re.compile(r"\b((?:Bearer|Basic)\s+)[\w.~+/=-]{8,}", re.IGNORECASE)


def masked(text: str) -> str:
    """The text with `***` for the passwords and tokens of URLs, connection strings, variables and headers.

    >>> masked("no answer from redis://:secret@host:6379/0")
    'no answer from redis://:***@host:6379/0'
    >>> masked("postgresql://ann@host/farm?sslp%61ssword=secret&connect_timeout=2")
    'postgresql://ann@host/farm?sslp%61ssword=***&connect_timeout=2'
    >>> masked("host=db user=ann password='my secret' dbname=farm")
    'host=db user=ann password=*** dbname=farm'
    """
    text = _USER_AND_PASSWORD.sub(r"\1:***@", text)
    text = _ALONE.sub(r"\1***@", text)
    text = _PARAMETER.sub(_masked_parameter, text)
    text = _KEYWORD.sub(r"\1***", text)
    text = _VARIABLE.sub(r"\1***", text)
    text = _MEMBER.sub(r"\1'***'", text)
    return _HEADER.sub(r"\1***", text)


def _masked_parameter(found: re.Match[str]) -> str:
    mark, name, value = found.groups()
    secret = value and _SECRET_PARAMETER.search(unquote(name))
    return f"{mark}{name}=***" if secret else found[0]
