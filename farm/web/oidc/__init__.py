"""Signing in with an OpenID provider. Nothing here but `configuration` is imported while `FARM_OIDC_ISSUER` is unset."""
