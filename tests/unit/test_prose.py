"""The prose check of `make lint`: what it reads of a document, and what it finds there."""

from __future__ import annotations

from types import ModuleType

import pytest

from support.docs_scripts import docs_script


@pytest.fixture(scope="module")
def prose() -> ModuleType:
    return docs_script("prose")


def test_paragraphs_items_and_cells_are_texts_of_their_own(prose: ModuleType) -> None:
    document = "# Head\n\nOne\ntwo.\n- three\n- four\n  five\n\n| a | b `c` |\n| --- | --- |\n"
    texts = [(line, text) for line, text in prose.texts_of(document) if text.strip("- ")]
    assert texts == [(1, "Head"), (3, "One two."), (5, "three"), (6, "four five"), (9, "a"), (9, "b X")]


def test_code_comments_and_addresses_are_not_read(prose: ModuleType) -> None:
    document = "```sh\nwhoever\n```\n<!-- whoever -->\nSee [that](whoever.md) and `whoever`.\n"
    assert [text for _, text in prose.texts_of(document)] == ["See that and X."]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Whoever reads it.", 1),
        ("Rows of which one is used.", 1),
        ("The table beside it.", 1),
        ("Each row has a beside-the-point column.", 0),
        ("The kernel of the problem.", 0),
    ],
)
def test_a_word_is_found_as_a_whole_word_in_any_case(prose: ModuleType, text: str, found: int) -> None:
    assert len(list(prose.faults_in(text))) == found


def test_a_long_sentence_is_found_and_two_short_ones_are_not(prose: ModuleType) -> None:
    words = prose.RULES["words_in_a_sentence"]
    assert len(list(prose.faults_in("word " * (words + 1) + "."))) == 1
    assert list(prose.faults_in("word " * (words - 1) + "end. " + "Word " * words)) == []


def test_help_texts_of_commands_in_groups_and_of_options_are_read(prose: ModuleType) -> None:
    places = {place for place, _ in prose.help_texts()}
    assert {"farm run", "farm models show", "farm run file", "farm results limit"} <= places


def test_docstrings_and_messages_of_source_code_are_read(prose: ModuleType) -> None:
    source = 'def f():\n    """One of whom\n    it is."""\n    raise E(f"no {x} beside it", "key", "SELECT a FROM b")\n'
    texts = [(line, text) for line, text in prose.strings_of(source)]
    assert texts == [(2, "One of whom\n    it is."), (4, "no X beside it")]
    assert [len(list(prose.words_in(text))) for _, text in texts] == [1, 1]
