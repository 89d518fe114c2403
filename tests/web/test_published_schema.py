"""The server publishes the JSON Schema of campaign files for editors, which have no token."""

from __future__ import annotations

from farm.api.access import Access
from farm.campaign.schema import PATH, campaign_schema
from support.api_farm import Served


def test_the_schema_is_published_without_a_token_and_not_sent_twice(api_access: Access) -> None:
    with Served(api_access, tokens=True) as served:
        anybody = served.asking()
        first = anybody.get(PATH)
        assert (first.status_code, first.headers["content-type"]) == (200, "application/schema+json")
        assert first.json() == campaign_schema()
        again = anybody.get(PATH, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert anybody.get("/schema/none.json").status_code in (401, 404)
