"""An OpenID provider: its discovery document, its keys, and whom it signed in (authorization code flow with PKCE)."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from authlib.oauth2.auth import ClientAuth
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri, prepare_token_request
from pydantic import BaseModel, ValidationError

from farm.web.oidc.configuration import CALLBACK, Configuration, is_protected
from farm.web.oidc.errors import ClientRefused, IdTokenRefused, ProviderUnreachable, SignInRefused
from farm.web.oidc.flow import Flow
from farm.web.oidc.http import ProviderHttp
from farm.web.oidc.id_tokens import NoKeyFits, Unacceptable, verify

METADATA_SECONDS = 3600.0
"""How long the discovery document and the keys are used before they are fetched again."""

FAILED_SECONDS = 10.0
"""How long a provider that did not send its discovery document is not asked again."""

_MAX_GROUPS, _MAX_GROUP = 2000, 200


class Metadata(BaseModel):
    """What the farm uses of a discovery document."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    end_session_endpoint: str | None = None
    token_endpoint_auth_methods_supported: list[str] = ["client_secret_basic"]
    authorization_response_iss_parameter_supported: bool = False


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Whom the provider signed in."""

    subject: str
    names: tuple[str, ...]
    """Readable names, the best first."""
    groups: tuple[str, ...]


class Provider:
    """The provider of a server. Its methods may be called from several threads, and raise the errors of `farm.web.oidc.errors`."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._http = ProviderHttp(configuration)
        self._lock = threading.Lock()
        self._metadata: Metadata | None = None
        self._metadata_until = 0.0
        self._failure: tuple[float, ProviderUnreachable] | None = None
        self._keys: tuple[float, dict[str, Any]] | None = None

    @property
    def redirect_uri(self) -> str:
        return f"{self._configuration.url}{CALLBACK}"

    def authorization_url(self, flow: Flow) -> str:
        """Where the browser signs in."""
        url: str = prepare_grant_uri(
            self.metadata().authorization_endpoint,
            self._configuration.client_id,
            "code",
            redirect_uri=self.redirect_uri,
            scope=" ".join(self._configuration.scopes),
            state=flow.state,
            nonce=flow.nonce,
            code_challenge=flow.challenge,
            code_challenge_method="S256",
        )
        return url

    def end_session_url(self) -> str | None:
        """Where the browser signs out of the provider (RP-Initiated Logout); None if the provider has no such place."""
        if (endpoint := self.metadata().end_session_endpoint) is None:
            return None
        back = {
            "client_id": self._configuration.client_id,
            "post_logout_redirect_uri": f"{self._configuration.url}/login",
        }
        return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(back)}"

    def identify(self, code: str, flow: Flow, *, issuer: str | None) -> Identity:
        """Whom the code of a callback stands for.

        Args:
            code: the authorization code.
            flow: the sign-in that the browser began.
            issuer: the parameter `iss` of the callback (RFC 9207).
        """
        metadata = self.metadata()
        expected = issuer is not None or metadata.authorization_response_iss_parameter_supported
        if expected and issuer != self._configuration.issuer:
            raise self._refused("the response comes from another issuer")
        with self._http.turn():
            answer = self._redeem(code, flow, metadata)
            access_token = answer.get("access_token")
            access_token = access_token if isinstance(access_token, str) else None
            claims = self._claims(answer.get("id_token"), flow, metadata, access_token)
            if _claim(claims, self._configuration.groups_claim) is None:
                claims = {**self._user_info(claims, metadata, access_token), **claims}
        return Identity(
            subject=claims["sub"],
            names=tuple(_names(claims)),
            groups=_groups(_claim(claims, self._configuration.groups_claim)),
        )

    def metadata(self) -> Metadata:
        """The discovery document, fetched at its first use and once an hour."""
        found = self._metadata
        if found is not None and time.monotonic() < self._metadata_until:
            return found
        with self._http.turn(), self._lock:
            if self._metadata is not None and time.monotonic() < self._metadata_until:
                return self._metadata
            if self._failure is not None and time.monotonic() < self._failure[0]:
                raise self._failure[1].with_traceback(None)
            try:
                self._metadata = self._discovered()
            except ProviderUnreachable as error:
                self._failure = (time.monotonic() + FAILED_SECONDS, error)
                raise
            self._metadata_until = time.monotonic() + METADATA_SECONDS
            return self._metadata

    def close(self) -> None:
        self._http.close()

    def _discovered(self) -> Metadata:
        issuer = self._configuration.issuer
        url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        try:
            found = Metadata.model_validate(self._http.get(url))
        except ValidationError as error:
            missing = ", ".join(str(one["loc"][0]) for one in error.errors())
            raise self._http.unreachable(f"{url} is no discovery document: {missing}") from None
        if found.issuer != issuer:
            raise self._http.unreachable(
                f"{url} is of the issuer {found.issuer[:200]!r}, and FARM_OIDC_ISSUER is another"
            )
        endpoints = (found.authorization_endpoint, found.token_endpoint, found.jwks_uri)
        for endpoint in (*endpoints, found.userinfo_endpoint, found.end_session_endpoint):
            if endpoint is not None and not _usable(endpoint, loopback=self._configuration.on_loopback):
                raise self._http.unreachable(f"{url} names {endpoint[:200]!r}, which is not encrypted")
        return found

    def _redeem(self, code: str, flow: Flow, metadata: Metadata) -> dict[str, Any]:
        """The answer of the token endpoint, which gives tokens for a code."""
        configuration = self._configuration
        body = prepare_token_request(
            "authorization_code", redirect_uri=self.redirect_uri, code=code, code_verifier=flow.verifier
        )
        auth = ClientAuth(configuration.client_id, configuration.client_secret, self._auth_method(metadata))
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        url, headers, body = auth.prepare("POST", metadata.token_endpoint, headers, body)
        status, answer = self._http.ask("POST", url, headers=headers, body=body)
        if status == 200:
            return answer
        why = error_code(answer.get("error")) or f"status {status}"
        if status == 401 or why in ("invalid_client", "unauthorized_client"):
            raise ClientRefused(name=configuration.name, why=why)
        raise SignInRefused(name=configuration.name, why=why)

    def _auth_method(self, metadata: Metadata) -> str:
        if self._configuration.client_secret is None:
            return "none"
        offered = metadata.token_endpoint_auth_methods_supported
        only_post = "client_secret_post" in offered and "client_secret_basic" not in offered
        return "client_secret_post" if only_post else "client_secret_basic"

    def _claims(self, id_token: object, flow: Flow, metadata: Metadata, access_token: str | None) -> dict[str, Any]:
        if not isinstance(id_token, str):
            raise self._refused("it sent no ID token")
        configuration = self._configuration
        for fresh in (False, True):
            keys = self._key_set(metadata, fresh=fresh)
            try:
                return verify(
                    id_token,
                    keys,
                    issuer=configuration.issuer,
                    client_id=configuration.client_id,
                    nonce=flow.nonce,
                    access_token=access_token,
                )
            except NoKeyFits as error:
                if fresh:
                    raise self._refused(str(error)) from None
            except Unacceptable as error:
                raise self._refused(str(error)) from None
        raise AssertionError

    def _key_set(self, metadata: Metadata, *, fresh: bool) -> dict[str, Any]:
        """The provider's keys. `fresh`: fetched now, as the provider may have new ones."""
        if not fresh and self._keys is not None and time.monotonic() < self._keys[0]:
            return self._keys[1]
        found = self._http.get(metadata.jwks_uri)
        self._keys = (time.monotonic() + METADATA_SECONDS, found)
        return found

    def _user_info(self, claims: Mapping[str, Any], metadata: Metadata, access_token: str | None) -> dict[str, Any]:
        """Claims that the provider has in its userinfo and not in the ID token."""
        if metadata.userinfo_endpoint is None or access_token is None:
            return {}
        found = self._http.get(metadata.userinfo_endpoint, Authorization=f"Bearer {access_token}")
        if found.get("sub") != claims["sub"]:
            raise self._refused("its userinfo is about another subject")
        return found

    def _refused(self, why: str) -> IdTokenRefused:
        return IdTokenRefused(name=self._configuration.name, why=why)


def error_code(given: object) -> str | None:
    """The code of an OAuth error, if it is one: a provider's or an attacker's text is not repeated."""
    if not isinstance(given, str) or not given.isascii() or not given.replace("_", "").isalnum():
        return None
    return given if len(given) <= 60 else None


def _usable(url: str, *, loopback: bool) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "https" or (loopback and is_protected(parts))


def _claim(claims: Mapping[str, Any], name: str) -> object:
    """A claim by its name, or by its path: `realm_access.roles`. Names of claims may have dots."""
    if name in claims:
        return claims[name]
    found: object = claims
    for step in name.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def _groups(claim: object) -> tuple[str, ...]:
    listed = claim if isinstance(claim, list) else [claim]
    return tuple(
        one for one in listed[:_MAX_GROUPS] if isinstance(one, str) and 0 < len(one) <= _MAX_GROUP and one.isprintable()
    )


def _names(claims: Mapping[str, Any]) -> list[str]:
    verified = claims.get("email") if claims.get("email_verified") is True else None
    listed = (claims.get("preferred_username"), verified, claims["sub"])
    return [one for one in listed if isinstance(one, str)]
