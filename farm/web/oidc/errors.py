"""Why a provider did not sign a browser in. No message has a code, a token or a secret."""

from __future__ import annotations

from farm.errors import BadInput, Forbidden, NotFound, ServiceUnavailable


class ProviderUnreachable(ServiceUnavailable):
    """{name} cannot be used for signing in now: {why}. Try again later, or sign in with a token."""


class ProviderBusy(ServiceUnavailable):
    """{count} browsers are being signed in at {name}. Try again in a few seconds, or sign in with a token."""


class ClientRefused(ServiceUnavailable):
    """{name} does not accept this farm as a client ({why}). An operator of the farm checks FARM_OIDC_CLIENT_ID and FARM_OIDC_CLIENT_SECRET. You can sign in with a token."""


class WrongPublicUrl(ServiceUnavailable):
    """FARM_PUBLIC_URL is {url}, and a request for it has the address {seen}. An operator of the farm corrects the setting, or lets the proxy send the headers Host and X-Forwarded-Proto of the browser. You can sign in with a token."""


class SignInLost(BadInput):
    """This sign-in began in another browser, or more than {minutes} minutes ago, or was completed before. Sign in again."""


class SignInRefused(Forbidden):
    """{name} did not sign you in: {why}. Sign in again, or use a token."""


class IdTokenRefused(Forbidden):
    """The farm does not accept the ID token of {name}: {why}. Sign in again. If that does not help, tell an operator of the farm."""


class NoRole(Forbidden):
    """{name} signed you in, but your groups there have no role in this farm. Nothing was stored.
    Your groups: {groups}
    Ask an operator of the farm to add one of them to FARM_OIDC_ROLES, or an administrator of {name} to add you to a group that is there."""


class NoSignOut(NotFound):
    """{name} has no page to sign out from other programs. Sign out in its own pages, or close the browser."""
