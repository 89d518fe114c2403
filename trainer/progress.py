"""What share of a training is done, in units of rows that models are fitted on."""

from __future__ import annotations


class Progress:
    """How far a training is: written by who trains, and read by the thread that reports it.

    A fit takes about as long as it has rows, and all else little: folds and the last fit are the work that is counted.
    """

    def __init__(self) -> None:
        self._total = 0
        self._done = 0

    def plan(self, rows: int) -> None:
        """Adds work that will be done: the rows of a fit, or the sum of those of several fits."""
        self._total += rows

    def fitted(self, rows: int) -> None:
        """Notes that a model was fitted on so many rows."""
        self._done += rows

    @property
    def share(self) -> float | None:
        """From 0 to 1; None while it is not known how much there is to do."""
        return min(self._done / self._total, 1.0) if self._total else None
