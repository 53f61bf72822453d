"""The trusted side: starts the engine, supervises executions and reads their results."""
