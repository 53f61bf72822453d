"""The trusted side: starts the engine, follows executions, reads results."""
