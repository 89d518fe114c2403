"""The settings of an OpenID provider, checked as a whole when `farm serve` starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import SplitResult, urlsplit

from farm.addresses import is_loopback, port_of
from farm.db.states import Role
from farm.errors import BadInput
from farm.settings import Settings
from farm.web.cookies import Origin

CALLBACK = "/oidc/callback"
"""The path to which the provider sends browsers back."""

EVERYBODY = "*"
"""In `FARM_OIDC_ROLES`: everyone whom the provider signs in."""

_PREFIX = "oidc_"


class BadOidcSettings(BadInput):
    """The settings for signing in with an OpenID provider cannot be used:
    {problems}
    docs/security.md, section "Sign in with OIDC", has an example."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """An OpenID provider, this farm as its client, and the roles of its groups."""

    issuer: str
    client_id: str
    client_secret: str | None = field(default=None, repr=False)
    """None for a public client, which has PKCE alone."""
    name: str
    """The provider's name on the sign-in page."""
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    groups_claim: str = "groups"
    roles: tuple[tuple[str, Role], ...]
    """Groups with their roles."""
    session: timedelta = timedelta(hours=8)
    """When a session ends at latest, with the rights that it was given."""
    origin: Origin
    """Where browsers reach the farm."""

    @property
    def url(self) -> str:
        """The farm's address for browsers."""
        host = f"[{self.origin.host}]" if ":" in self.origin.host else self.origin.host
        default = {"https": 443, "http": 80}[self.origin.scheme]
        return f"{self.origin.scheme}://{host}" + ("" if self.origin.port == default else f":{self.origin.port}")

    @property
    def on_loopback(self) -> bool:
        """Whether the provider is on this machine, and may use plain HTTP."""
        return is_loopback(urlsplit(self.issuer).hostname or "")

    def role_of(self, groups: Iterable[str]) -> Role | None:
        """The strongest role of these groups; None if none of them has one."""
        own = {EVERYBODY, *groups}
        ranks = list(Role)
        return max((role for group, role in self.roles if group in own), key=ranks.index, default=None)


def configured(settings: Settings) -> Configuration | None:
    """The provider that the settings name; None without `FARM_OIDC_ISSUER`. Raises `BadOidcSettings` with every problem."""
    problems = list(_problems(settings))
    roles, wrong = _roles(settings.oidc_roles)
    if problems or wrong:
        raise BadOidcSettings(problems="\n".join(problems + wrong))
    if settings.oidc_issuer is None:
        return None
    assert settings.oidc_client_id is not None
    assert settings.public_url is not None
    secret, parts = settings.oidc_client_secret, urlsplit(settings.public_url)
    return Configuration(
        issuer=settings.oidc_issuer,
        client_id=settings.oidc_client_id,
        client_secret=None if secret is None else secret.get_secret_value(),
        name=settings.oidc_name or urlsplit(settings.oidc_issuer).hostname or "the provider",
        scopes=tuple(settings.oidc_scopes.split()),
        groups_claim=settings.oidc_groups_claim,
        roles=roles,
        session=timedelta(hours=settings.oidc_session_hours),
        origin=Origin(parts.scheme, parts.hostname or "", port_of(parts)),
    )


def _problems(settings: Settings) -> Iterator[str]:
    if settings.oidc_issuer is None:
        given = sorted(name for name in settings.model_fields_set if name.startswith(_PREFIX))
        if given:
            names = ", ".join(f"FARM_{name.upper()}" for name in given)
            yield f"- {names} without FARM_OIDC_ISSUER: set it to the URL of the provider."
        return
    if (why := _why_unusable(settings.oidc_issuer)) is not None:
        yield f"- FARM_OIDC_ISSUER {why}."
    if settings.oidc_client_id is None:
        yield "- FARM_OIDC_CLIENT_ID is missing: the provider gives it when you register the farm as a client."
    if settings.public_url is None:
        yield f"- FARM_PUBLIC_URL is missing: where browsers reach the farm, as https://farm.example. The provider sends them back to its {CALLBACK}."
    elif (why := _why_unusable(settings.public_url)) is not None:
        yield f"- FARM_PUBLIC_URL {why}."
    elif urlsplit(settings.public_url).path not in ("", "/"):
        yield "- FARM_PUBLIC_URL has a path: the farm needs a host name of its own."
    if "openid" not in settings.oidc_scopes.split():
        yield "- FARM_OIDC_SCOPES lacks openid."
    if not settings.oidc_roles.strip():
        yield "- FARM_OIDC_ROLES is missing: groups with their roles, as gemm-admins=admin,gpu-users=submit."


def _why_unusable(url: str) -> str | None:
    """Why a URL is none of a provider or of this farm."""
    try:
        parts = urlsplit(url)
        port_of(parts)
    except ValueError as error:
        return f"is no URL: {error}"
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable() or not url.isascii():
        return "is no URL that begins with https://"
    if not is_protected(parts):
        return "must begin with https://, as others can read plain HTTP. Only loopback addresses may use it"
    if parts.username is not None or parts.query or parts.fragment:
        return "must have no user, query or fragment"
    return None


def is_protected(parts: SplitResult) -> bool:
    """Whether data for this URL is encrypted, or stays on this machine."""
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))


def _roles(text: str) -> tuple[tuple[tuple[str, Role], ...], list[str]]:
    """`gemm-admins=admin,gpu-users=submit` as groups with roles, and what is wrong in it.

    Names of groups may have an equals sign. With a semicolon in the text, they may have commas.
    """
    found, wrong = dict[str, Role](), list[str]()
    for one in filter(None, map(str.strip, text.split(";" if ";" in text else ","))):
        group, equals, role = (part.strip() for part in one.rpartition("="))
        if not group or not equals:
            wrong.append(f"- FARM_OIDC_ROLES: {one!r} is no group and role, as gpu-users=submit.")
        elif role not in list(Role):
            wrong.append(f"- FARM_OIDC_ROLES: {role!r} in {one!r} is no role. Roles are {', '.join(Role)}.")
        elif group in found:
            wrong.append(f"- FARM_OIDC_ROLES: {group!r} is there twice.")
        else:
            found[group] = Role(role)
    return tuple(found.items()), wrong
