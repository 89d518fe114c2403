"""The predictor: what a registered model computes from its arrays.

The farm reads models with this package, and never with code from a registry. A copy of it is stored with every model, for
programs without the farm: modules here import the standard library, numpy, pandas and one another (relatively). Training and
evaluation call the same modules, so a model predicts exactly as it was evaluated.
"""
