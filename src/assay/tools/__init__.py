"""Tools that Assay offers to models: files, search and programs, all in a sandbox."""
