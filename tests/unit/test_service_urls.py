"""Which URLs of services are taken, and that no password is ever shown."""

from __future__ import annotations

import ssl
import string

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils.url import parse_url
from sqlalchemy import make_url

from farm.errors import BadServiceUrl
from farm.services import urls

passwords = st.text(alphabet=string.ascii_letters + string.digits + "-_.~!$*", min_size=8)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_every_way_to_write_postgres_becomes_the_form_of_sqlalchemy(scheme: str) -> None:
    url = urls.database_url(f"{scheme}://ann:pw%40x@db.example:6543/farm?sslmode=require")
    assert url == "postgresql+psycopg://ann:pw%40x@db.example:6543/farm?sslmode=require"


@pytest.mark.parametrize(
    "url",
    ["sqlite:///farm.db", "mysql://root:hunter22@h/farm", "postgresql", "", "postgresql://ann:hunter22@h:port/farm"],
)
def test_what_is_not_a_postgres_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(BadServiceUrl) as refused:
        urls.database_url(url)
    assert "FARM_DATABASE_URL" in str(refused.value)
    assert "hunter22" not in str(refused.value)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    "url",
    [
        "redis://:pw@host:6379/0",
        "redis://host",
        "rediss://user:pw@host:6380/2?ssl_cert_reqs=CERT_REQUIRED",
        "redis+socket://:pw@/run/redis.sock?virtual_host=1",
        "redis+socket:///run/redis.sock",
    ],
)
def test_redis_over_tcp_tls_and_sockets_is_taken_as_it_is(url: str) -> None:
    assert urls.broker_url(url) == url


@pytest.mark.parametrize("query", ["", "?", "?ssl_cert_reqs=", "?ssl_ca_certs=/etc/ca.pem"])
def test_redis_over_tls_checks_the_certificate_where_the_url_does_not_say(query: str) -> None:
    url = urls.broker_url(f"rediss://ann:pw@host:6380/2{query}")
    assert parse_url(url)["ssl"]["ssl_cert_reqs"] == ssl.CERT_REQUIRED
    assert parse_url(url)["virtual_host"] == "2"
    for either in (url, f"rediss://ann:pw@host:6380/2{query}"):
        parameters = redis.ConnectionPool.from_url(urls.redis_client_url(either)).connection_kwargs
        assert parameters["ssl_cert_reqs"] == "required"
    assert ("ssl_ca_certs=/etc/ca.pem" in url) == ("ssl_ca_certs" in query)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("amqp://guest:hunter22@host//", "Redis only"),
        ("redis://:hunter22@host:port/0", "FARM_BROKER_URL"),
        ("redis://", "no host"),
        ("rediss://:hunter22@host?ssl_cert_reqs=require", "ssl_cert_reqs is required, optional or none"),
        ("redis+socket://host/run/redis.sock", "redis+socket://:password@/run/redis.sock"),
        # kombu would connect without any password here.
        ("redis+socket:///run/redis.sock?password=hunter22", "redis+socket://:password@/run/redis.sock"),
    ],
)
def test_what_celery_could_not_use_is_refused_with_the_right_form(url: str, hint: str) -> None:
    with pytest.raises(BadServiceUrl) as refused:
        urls.broker_url(url)
    assert hint in str(refused.value)
    assert "hunter22" not in str(refused.value)


@given(password=passwords, user=st.sampled_from(["", "ann"]), host=st.sampled_from(["h:1", "[::1]:6379", ""]))
def test_a_safe_url_shows_everything_but_the_password(password: str, user: str, host: str) -> None:
    assert urls.safe_url(f"redis://{user}:{password}@{host}/0?x=1") == f"redis://{user}:***@{host}/0?x=1"
    assert urls.safe_url(f"redis://{user}:{password}@unescaped@{host}/0") == f"redis://{user}:***@{host}/0"
    assert urls.safe_url(f"unix:///s.sock?db=0&password={password}#x") == "unix:///s.sock?db=0&password=***#x"


def test_a_url_without_a_password_is_shown_as_it_is() -> None:
    for url in ("redis://host:6379/0", "postgresql://ann@host/farm", "sqlite:////tmp/a/mlflow.db", "http://host:5000"):
        assert urls.safe_url(url) == url


@given(password=passwords, folder=st.text(alphabet="ab é%&?#+", min_size=1).map(str.strip).filter(bool))
def test_the_embedded_urls_carry_path_and_password_to_their_clients(password: str, folder: str) -> None:
    database = make_url(
        urls.embedded_database_url(
            socket_folder=f"/{folder}", port=5432, user="farm", password=password, database="farm"
        )
    )
    assert (database.query["host"], database.query["port"], database.password) == (f"/{folder}", "5432", password)

    broker = urls.embedded_broker_url(socket=f"/{folder}/redis.sock", password=password)
    assert urls.broker_url(broker) == broker
    parameters = redis.ConnectionPool.from_url(urls.redis_client_url(broker)).connection_kwargs
    assert (parameters["path"], parameters["password"], parameters["db"]) == (f"/{folder}/redis.sock", password, 0)


def test_the_redis_package_gets_sockets_databases_and_tls_rules_under_its_own_names() -> None:
    assert urls.redis_client_url("redis+socket://:pw@/run/r.sock?virtual_host=3") == "unix://:pw@/run/r.sock?db=3"
    assert urls.redis_client_url("rediss://h/0?ssl_cert_reqs=CERT_NONE") == "rediss://h/0?ssl_cert_reqs=none"
    assert urls.redis_client_url("redis://:pw@h:1/2") == "redis://:pw@h:1/2"
