"""The checks of `assay doctor` beyond isolation: keys, models, services, extras, folders."""
