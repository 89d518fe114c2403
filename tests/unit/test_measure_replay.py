"""Timing by replays: how launches are grouped, and what is believed of them. The cards here are clocks."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.measure.replay import (
    MIN_REPLAY_MS,
    QUEUED_MS,
    Launches,
    Lot,
    ReplayPlan,
    Replays,
    batches_of_replays,
    estimate_ms,
    in_time,
    plan_replays,
    replays_in_batch,
    runs_of,
)


@pytest.mark.parametrize(
    ("sets", "estimate_ms", "launches"),
    [
        (10, 0.01, (100,)),
        (3, 0.4, (3,)),
        (7, 0.05, (21,)),
        (3, 0.9, (3,)),  # two graphs would be shorter than a millisecond
        (8, 0.3, (4, 4)),
        (11, 0.25, (6, 5)),
        (2048, 0.003, (342, 342, 341, 341, 341, 341)),
        (3, 1.0, (1, 1, 1)),
        (2, 450.0, (1, 1)),
    ],
)
def test_graphs_walk_over_all_sets_and_stay_short(sets: int, estimate_ms: float, launches: tuple[int, ...]) -> None:
    assert plan_replays(sets, estimate_ms).launches == launches


@given(sets=st.integers(1, 4096), estimate_ms=st.floats(1e-3, 1e3))
def test_graphs_of_any_kernel_are_whole_walks_of_like_graphs(sets: int, estimate_ms: float) -> None:
    launches = plan_replays(sets, estimate_ms).launches
    assert sum(launches) % sets == 0
    assert len(launches) == 1 or sum(launches) == sets  # no set is used twice within a walk
    assert max(launches) - min(launches) <= 1
    assert min(launches) * estimate_ms >= MIN_REPLAY_MS * (1 - 1e-9)
    assert max(launches) * estimate_ms < 4 * max(MIN_REPLAY_MS, estimate_ms) or len(launches) == 1


def test_batches_of_replays_last_some_twenty_milliseconds() -> None:
    assert [replays_in_batch(t) for t in (0.05, 1.0, 6.0, 450.0)] == [64, 20, 3, 1]


def test_the_first_batch_is_no_more_than_a_row_needs() -> None:
    assert list(islice(batches_of_replays(1.0, 10), 3)) == [10, 20, 20]
    assert list(islice(batches_of_replays(6.0, 10), 3)) == [3, 3, 3]


class Card:
    """A card on which launches take the given times, one after the other; the last one again and again."""

    def __init__(self, *times_ms: float) -> None:
        self.times_ms = list(times_ms)
        self.now_ms = 0.0
        self.launched: list[int] = []
        self.cuda = SimpleNamespace(get_elapsed_time=lambda a, b: b.at - a.at)

    def record(self) -> Any:
        return SimpleNamespace(at=self.now_ms, synchronize=lambda: None)

    def launch(self, index: int) -> None:
        self.launched.append(index)
        self.now_ms += self.times_ms.pop(0) if len(self.times_ms) > 1 else self.times_ms[0]


@pytest.mark.parametrize(
    ("first_ms", "loaded", "times_ms", "estimate", "launches"),
    [
        (450.0, False, [450.0], 450.0, 0),  # loading takes no such time
        (5.0, True, [5.0], 5.0, 0),
        (5.0, False, [4.9], 4.9, 1),  # it may have been loading
        (5.0, False, [0.01, 0.02, 0.008, 0.009], 0.008, 5),
        (0.3, True, [0.2], 0.3, 0),
        (0.03, True, [0.02, 0.025, 0.021, 0.02], 0.02, 4),
        (0.003, True, [0.0], 0.001, 4),
    ],
)
def test_a_long_kernel_is_not_launched_again_to_see_how_long_it_takes(
    first_ms: float, loaded: bool, times_ms: list[float], estimate: float, launches: int
) -> None:
    card = Card(*times_ms)
    found = estimate_ms(card, card, card.launch, 3, first_ms=first_ms, loaded=loaded)
    assert found == pytest.approx(estimate)
    assert len(card.launched) == launches
    assert card.launched[:2] == [1, 1][:launches] or card.launched[:2] == [1, 2]


def test_lots_tell_how_fast_a_card_was_while_it_was_kept_busy() -> None:
    card = LateHost([0.0] * 200)
    runs = Replays(card, card, lambda _: None, 1, ReplayPlan(launches=(1,)))
    runs.keep_busy(1.0)
    runs.keep_busy(1.0)
    queued = 2 * int(QUEUED_MS)
    runs.drain()
    assert runs.pace() == [Lot(pytest.approx((1 + n) / 1e3), pytest.approx(1.0), 1) for n in range(queued)]  # type: ignore[arg-type]
    runs.keep_busy(1.0)
    assert len(card.launched_ms) == 200 - 2 * queued  # after draining, as much is queued anew
    assert runs.pace() == []  # none of which has ended


def test_a_lot_that_the_host_queued_after_the_card_had_run_dry_is_late() -> None:
    card = LateHost([0.0, 0.0, 5.0, 5.0])
    runs = Replays(card, card, lambda _: None, 1, ReplayPlan(launches=(1,)))
    assert [lot.late for lot in runs.begin(1.0, 4.0)] == [False, False, True, False]
    lots = runs.pace()
    assert [lot.gemm_ms for lot in in_time(lots)] == [1.0, 1.0, 1.0]
    assert in_time([lot for lot in lots if lot.late]) == [lots[2]]


def test_a_load_begins_with_at_least_so_many_milliseconds() -> None:
    card = GraphCard(0.25)
    runs = runs_of(card, card, card.launch, 11, 0.5, capturable=True)  # it takes half as long as was known
    lots = runs.begin(0.5, 40.0)
    assert lots[-1].ended_s >= 0.04
    assert sum(lot.launches for lot in lots) == len(card.launched)


class LateHost:
    """A stream on which a graph takes 1 ms, of a host that launches at given times."""

    def __init__(self, launched_ms: list[float]) -> None:
        self.launched_ms = launched_ms
        self.ends_ms: list[float] = []
        self.host_ms = 0.0
        self.cuda = SimpleNamespace(get_elapsed_time=lambda a, b: b.at - a.at)

    def begin_capture(self) -> None: ...

    def synchronize(self) -> None: ...

    def end_capture(self) -> Any:
        return self

    def launch(self, _: Any) -> None:
        self.host_ms = self.launched_ms.pop(0)
        self.ends_ms.append(max([self.host_ms, *self.ends_ms[-1:]]) + 1.0)

    def record(self) -> Any:
        stream, at = self, self.ends_ms[-1] if self.ends_ms else 0.0

        class Event(SimpleNamespace):
            @property
            def done(self) -> bool:
                return stream.host_ms >= at

        return Event(at=at, synchronize=lambda: None)


@pytest.mark.parametrize(
    ("launched_ms", "samples_ms", "late"),
    [
        ([0.0, 0.1, 0.2, 0.3], [1.0, 1.0, 1.0], 0),
        ([0.0, 0.1, 7.0, 7.1], [1.0, 1.0], 1),  # the card waited for the third
        ([0.0, 5.0, 10.0, 15.0], [5.0, 5.0, 5.0], 3),  # no other samples: they are told of
    ],
)
def test_samples_for_which_the_host_was_late_are_left_out(
    launched_ms: list[float], samples_ms: list[float], late: int
) -> None:
    host = LateHost(launched_ms)
    runs = Replays(host, host, lambda _: None, 1, ReplayPlan(launches=(1,)))
    assert runs.sample(3) == pytest.approx(samples_ms)
    assert runs.details()["late_samples"] == late


class GraphCard(Card):
    """A card that replays what it captured. A launch on its own takes as long as the host needs for it."""

    def __init__(self, kernel_ms: float, *, launch_ms: float = 0.0) -> None:
        super().__init__(kernel_ms)
        self.launch_ms = max(launch_ms, kernel_ms)
        self.kernel_ms = kernel_ms
        self.capturing: list[int] | None = None
        self.uploaded = 0
        self.RawModule = lambda code: SimpleNamespace(get_function=lambda _: lambda *_: None)

    def launch(self, index: int) -> None:
        if self.capturing is not None:
            self.capturing.append(index)
        else:
            self.launched.append(index)
            self.now_ms += self.launch_ms

    def begin_capture(self) -> None:
        self.capturing = []

    def end_capture(self) -> Any:
        captured, self.capturing = self.capturing, None

        def replay(_: Any) -> None:
            self.launched.extend(captured or [])
            self.now_ms += self.kernel_ms * len(captured or [])

        def upload(_: Any) -> None:
            self.uploaded += 1

        return SimpleNamespace(launch=replay, upload=upload)

    def synchronize(self) -> None: ...

    def record(self) -> Any:
        return SimpleNamespace(at=self.now_ms, synchronize=lambda: None, done=False)


def test_a_long_walk_is_replayed_graph_by_graph_and_each_sample_is_one_graph() -> None:
    card = GraphCard(0.25)
    runs = runs_of(card, card, card.launch, 11, 0.25, capturable=True)
    began_ms = card.now_ms
    assert runs.sample() == pytest.approx([0.25])
    assert card.now_ms - began_ms == pytest.approx(1.5)
    assert runs.sample() == pytest.approx([0.25])
    assert card.launched == list(range(11))
    assert runs.sample(3) == pytest.approx([0.25] * 3)  # and one ahead of them
    assert card.launched == list(range(11)) * 3
    assert runs.details()["graphs"] == card.uploaded == 2
    assert runs.launches == runs.details()["launches_per_sample"] == 5  # or one more


def test_graphs_of_different_lengths_are_counted_by_what_they_are() -> None:
    card = GraphCard(0.25)
    runs = runs_of(card, card, card.launch, 11, 0.25, capturable=True)
    runs.keep_busy(0.25)
    runs.drain()
    launched = len(card.launched)
    least = 2 * QUEUED_MS / 0.25
    assert least <= launched <= least + 2 * 6
    assert sum(lot.launches for lot in runs.pace()) == launched
    assert [lot.gemm_ms for lot in runs.pace()] == pytest.approx([0.25] * len(runs.pace()))
    assert runs.pace()[-1].ended_s == pytest.approx(launched * 0.25e-3)
    used = Counter(card.launched)
    assert max(used.values()) - min(used.values()) <= 1


def test_a_kernel_shorter_than_its_launch_is_told_by_a_graph_how_long_its_graphs_must_be() -> None:
    card = GraphCard(0.003, launch_ms=0.01)
    runs = runs_of(card, card, card.launch, 2048, 0.01, capturable=True)
    assert runs.launches == 341
    assert runs.details()["graphs"] == 6
    card.launched.clear()
    runs.sample(6)
    assert card.launched[:2048] == list(range(2048))


def test_launches_that_no_graph_captures_are_sampled_in_short_groups_too() -> None:
    card = GraphCard(0.25)
    runs = runs_of(card, card, card.launch, 11, 0.25, capturable=False)
    assert isinstance(runs, Launches)
    assert [len(card.launched) for _ in range(4) if runs.sample()] == [6, 11, 17, 22]
    assert card.launched == list(range(11)) * 2
    assert runs.sample(2) == pytest.approx([0.25] * 2)
