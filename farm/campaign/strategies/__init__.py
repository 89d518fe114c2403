"""How a campaign looks for the best kernel of each problem: one strategy in one module, registered here."""

from __future__ import annotations

from farm.campaign.strategies.grid import Grid
from farm.campaign.strategies.halving import Halving
from farm.campaign.strategies.learn import Learn
from farm.campaign.strategies.random import Random
from farm.campaign.strategies.strategy import STRATEGIES, Search, ShortRounds, readers_of, register, search_model

for _strategy in (Grid, Random, Halving, Learn):
    register(_strategy)
