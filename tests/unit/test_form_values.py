"""What a form of a page says of the fields of a query."""

from __future__ import annotations

from starlette.datastructures import QueryParams

from farm.api.comparing import Comparing
from farm.api.operation import checked
from farm.web.pages.forms import form_values


def test_blank_fields_empty_boxes_and_unknown_names_are_not_given() -> None:
    given = QueryParams("side=+a+&side=&side=b&by=&any_source=false&mixed=true&carbon=+300+&other=x")
    assert form_values(Comparing, given) == {"side": ["a", "b"], "mixed": "true", "carbon": "300"}


def test_what_is_given_makes_the_query_with_its_types() -> None:
    found = checked(Comparing, **form_values(Comparing, QueryParams("side=a&side=b&predict=true&carbon=3e2&tie=2")))
    assert (found.side, found.predict, found.carbon, found.tie, found.mixed) == (["a", "b"], True, 300.0, 2.0, False)
