"""The test that decided on a version's promotion, and how to get a champion (pure)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

TAG = "verdict"
"""The tag of a model version that holds its verdict as JSON."""


class PromotionTest(StrEnum):
    """The tests of a promotion, in their order: see docs/models.md."""

    LEAK = "leak"
    PROTOCOL = "protocol"
    BASELINE = "baseline"
    KINDS = "kinds"
    CHAMPION = "champion"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionVerdict:
    """The decisive test. Scores are mean bounded relative errors on held-out shapes: lower is better."""

    promoted: bool
    # The failed test, or the last passed test of a promoted version.
    test: PromotionTest
    score: float | None = None
    # The baseline or champion in that test, and its score.
    against: str | None = None
    against_score: float | None = None
    # Limits: the score itself, and the share of resamples in which it must be better than the other.
    needed_score: float | None = None
    better_in: float | None = None
    needed_in: float | None = None

    def to_tag(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_tag(cls, text: str | None) -> PromotionVerdict | None:
        """None where the tag is missing or unreadable."""
        try:
            found = json.loads(text or "")
            return cls(**{**found, "test": PromotionTest(found["test"])})
        except (ValueError, TypeError, KeyError):
            return None

    def __str__(self) -> str:
        if self.promoted:
            return f"It passed the test against {self.against}."
        if self.test is PromotionTest.LEAK:
            return "Its errors are not reliable: see the decision."
        if self.test is PromotionTest.PROTOCOL:
            return f"Its rows are of another protocol than those of {self.against}."
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


def remedy(*, name: str, version: str, device_type: str, sound: bool | None, verdict: PromotionVerdict | None) -> str:
    """How to get a champion of that device type."""
    force = " --force" if sound is False else ""
    promote = f"`farm models promote {name} {version}{force} --reason TEXT` makes this version the champion."
    if (verdict is not None and verdict.promoted) or (verdict is None and sound):
        return promote
    if verdict is not None and verdict.test is PromotionTest.LEAK:
        return f"Train it again: `farm train {device_type}`. {promote}"
    if verdict is not None and verdict.test is PromotionTest.PROTOCOL:
        return promote
    more = f"Measure more shapes on {device_type}, with nothing else running on it, and then run `farm train {device_type}`."
    return f"{more} {promote}"
