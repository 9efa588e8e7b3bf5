"""The foundation of the package: precision, validation, hyperparameter fields, caches and errors."""
