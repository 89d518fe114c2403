"""What a form says of the fields of an operation or a model, and how its inputs are drawn."""

from __future__ import annotations

import pytest
from starlette.datastructures import QueryParams

from farm.api import comparing, health, jobs
from farm.api.comparing import Comparing
from farm.api.operation import checked
from farm.db.states import FailureKind, JobState
from farm.errors import BadInput
from farm.web.pages.forms import Form
from farm.web.pages.rendering import rendered


def test_blank_fields_empty_boxes_and_other_names_are_not_given() -> None:
    given = QueryParams("side=+a+&side=&side=b&by=&any_source=false&mixed=true&carbon=+300+&other=x")
    assert Form(Comparing, given).values == {"side": ["a", "b"], "mixed": "true", "carbon": "300"}


def test_a_query_of_text_has_its_types_in_the_model() -> None:
    found = checked(Comparing, **Form(Comparing, QueryParams("side=a&side=b&predict=true&carbon=3e2&tie=2")).values)
    assert (found.side, found.predict, found.carbon, found.tie) == (["a", "b"], True, 300.0, 2.0)


def test_the_arguments_of_an_operation_have_their_types_and_the_rest_its_defaults() -> None:
    form = Form(jobs.list_, QueryParams("state=dead&kind=killed&limit=7"), fields=("state", "kind"))
    assert form.arguments(jobs.list_, campaign="c") == {
        "campaign": "c",
        "state": [JobState.DEAD],
        "kind": [FailureKind.KILLED],
    }
    (query,) = Form(Comparing, QueryParams("side=a&side=b")).arguments(comparing.compare, top=3).values()
    assert query == Comparing(side=["a", "b"], top=3)


@pytest.mark.parametrize(("query", "field"), [("tolerance=51", "tolerance"), ("alpha=many", "alpha")])
def test_a_mistake_names_the_field(query: str, field: str) -> None:
    with pytest.raises(BadInput, match=f"^{field}: "):
        Form(health.show, QueryParams(query)).arguments(health.show)


def test_an_input_is_drawn_as_its_field_is_declared() -> None:
    form = Form(health.show, QueryParams("type=<b>&any_source=true"))
    assert form["type"].value == "<b>"
    assert (form["any_source"].is_flag, form["any_source"].value) == (True, "true")
    assert form["tolerance"].attributes == {"type": "number", "min": 0, "max": 50, "step": "any"}
    assert form["tolerance"].help == "A smaller difference in time is no alarm, in %."
    chosen = Form(jobs.list_, QueryParams("state=dead"))["state"]
    assert (list(chosen.choices), chosen.value, chosen.optional) == ([*JobState], "dead", True)
    page = rendered("health.html", block="main", form=form, wrong=BadInput(detail="x"), found=None)
    assert 'name="type" value="&lt;b&gt;" autocomplete="off" size="18"' in page
    assert 'name="any_source" value="true" checked' in page
