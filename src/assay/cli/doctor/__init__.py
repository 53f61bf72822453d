"""What `assay doctor` looks at besides isolation: keys, models, services, extras, folders."""
