"""Checks of ID tokens: signature, issuer, audience, times and nonce (OpenID Connect Core 1.0, 3.1.3.7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from authlib.oidc.core import CodeIDToken
from joserfc import jws, jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey

from farm.errors import first_line

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
"""Only with a private key of the provider. With `none` and HMAC, a public text would suffice to sign."""

LEEWAY_SECONDS = 60
"""How far the clocks of provider and farm may differ."""

_MAX_SUBJECT = 255
_KINDS: Mapping[str, type[RSAKey | ECKey]] = {"RSA": RSAKey, "EC": ECKey}


class Unacceptable(Exception):
    """Why an ID token is refused."""


class NoKeyFits(Unacceptable):
    """None of the provider's keys made the signature: it may have new ones."""


def verify(
    token: str, key_set: Mapping[str, Any], *, issuer: str, client_id: str, nonce: str, access_token: str | None
) -> dict[str, Any]:
    """The claims of an ID token.

    Args:
        token: the ID token, as the token endpoint sent it.
        key_set: the provider's JSON Web Key Set.
        issuer: the expected `iss`.
        client_id: the expected audience and, if it is there, `azp`.
        nonce: of the authorization request.
        access_token: that came with the ID token, for `at_hash`.

    Raises:
        NoKeyFits: the signature matches no key of the set.
        Unacceptable: the token is wrong in another way.
    """
    header, claims = _signed(token, key_set)
    checked = CodeIDToken(
        claims,
        header,
        options={"iss": {"essential": True, "value": issuer}, "aud": {"essential": True, "value": client_id}},
        params={"nonce": nonce, "client_id": client_id, "access_token": access_token},
    )
    try:
        checked.validate(leeway=LEEWAY_SECONDS)
    except (JoseError, TypeError, ValueError) as error:
        raise Unacceptable(first_line(error)) from None
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= _MAX_SUBJECT or not subject.isprintable():
        raise Unacceptable("it names no subject")
    return claims


def _signed(token: str, key_set: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        header = jws.extract_compact(token.encode()).headers()
    except (JoseError, ValueError, TypeError):
        raise Unacceptable("the ID token is none") from None
    if header.get("alg") not in ALGORITHMS:
        raise Unacceptable(f"its ID token has the algorithm {str(header.get('alg'))[:20]!r}")
    for key in _keys(key_set.get("keys"), header.get("kid")):
        try:
            found = jwt.decode(token, key, algorithms=ALGORITHMS)
        except (JoseError, ValueError, TypeError, AttributeError):  # another key, or one of another kind
            continue
        return dict(found.header), dict(found.claims)
    raise NoKeyFits("no key of it made the signature of its ID token")


def _keys(listed: object, kid: object) -> Iterator[RSAKey | ECKey]:
    """The keys for signatures that may have made one with that key id."""
    for one in _objects(listed):
        kind = _KINDS.get(str(one.get("kty")))
        if kind is None or one.get("use", "sig") != "sig" or (kid is not None and one.get("kid") != kid):
            continue
        try:
            yield kind.import_key(one)
        except (JoseError, ValueError, TypeError):
            continue


def _objects(listed: object) -> Iterable[dict[str, Any]]:
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
