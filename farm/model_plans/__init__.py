"""Plans: what one step of a language model takes on a card, from the costs of its GEMMs (pure)."""
