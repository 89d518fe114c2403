-- MLflow keeps its runs and registry in a database of its own, beside the farm's.
CREATE DATABASE mlflow OWNER farm;
