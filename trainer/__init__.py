"""The learning side of the farm: a random forest per GPU type, evaluated on unseen shapes, kept in MLflow."""
