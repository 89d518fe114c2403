"""What a version's promotion was decided by, and what would make it the champion (pure)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

TAG = "verdict"
"""The tag of a model version that holds its verdict as JSON."""


class PromotionTest(StrEnum):
    """The tests of a promotion, in the order in which they are made: see docs/models.md."""

    LEAK = "leak"
    BASELINE = "baseline"
    KINDS = "kinds"
    CHAMPION = "champion"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The test that decided. Scores are mean bounded relative errors on held-out shapes: less is better."""

    promoted: bool
    # The test that failed; of a promoted version the last one that it passed.
    test: PromotionTest
    score: float | None = None
    # The baseline or the champion that it was compared with, and its score.
    against: str | None = None
    against_score: float | None = None
    # The score must be below this, and below that of the other in so large a share of resamples.
    needed_score: float | None = None
    better_in: float | None = None
    needed_in: float | None = None

    def to_tag(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_tag(cls, text: str | None) -> Verdict | None:
        """None where a version has no such tag, or one that this code cannot read."""
        try:
            found = json.loads(text or "")
            return cls(**{**found, "test": PromotionTest(found["test"])})
        except (ValueError, TypeError, KeyError):
            return None

    def __str__(self) -> str:
        if self.promoted:
            return f"It passed the test against {self.against}."
        if self.test is PromotionTest.LEAK:
            return "Its errors cannot be trusted: see the decision."
        if self.test is PromotionTest.KINDS:
            return f"It does not know every kind of row that {self.against} predicts."
        if self.score is None or self.against_score is None or self.needed_score is None:
            return f"It failed the test against {self.against}."
        found = (
            f"It failed the test against {self.against}: it scores {self.score:.4g}, and that {self.against_score:.4g}"
        )
        lacks = []
        if self.score >= self.needed_score:
            lacks.append(
                f"score below {self.needed_score:.4g} ({1 - self.needed_score / self.score:.0%} less than now)"
            )
        if self.better_in is not None and self.needed_in is not None and self.better_in < self.needed_in:
            lacks.append(f"be better in {self.needed_in:.0%} of resamples over shapes (now {self.better_in:.0%})")
        return f"{found}. It must {' and '.join(lacks)}." if lacks else f"{found}."


def remedy(*, name: str, version: str, device_type: str, sound: bool | None, verdict: Verdict | None) -> str:
    """What a user can do to get a champion of that device type."""
    force = " --force" if sound is False else ""
    promote = f"`farm models promote {name} {version}{force} --reason TEXT` makes this version the champion as it is."
    if (verdict is not None and verdict.promoted) or (verdict is None and sound):
        return promote
    if verdict is not None and verdict.test is PromotionTest.LEAK:
        return f"Train it again: `farm train {device_type}`. {promote}"
    more = f"Measure more shapes on {device_type}, with nothing else running on it, and then run `farm train {device_type}`."
    return f"{more} {promote}"
