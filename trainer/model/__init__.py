"""The code that is stored with every model and runs where the farm is not installed.

Modules here import the standard library, numpy, pandas and one another (relatively); only `gemm_forest` imports
mlflow. Training and evaluation call the same modules, so a model predicts exactly as it was evaluated.
"""
