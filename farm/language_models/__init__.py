"""Language models as lists of GEMMs: what one step of them multiplies on one GPU (pure)."""
