"""The limits of one execution in a run."""

from assay.contracts.execution import Limits
from assay.settings.load import AgentSettings


def limits_of(agent: AgentSettings) -> Limits:
    """Return the limits of one execution in a run, from the settings."""
    return Limits(
        wall_s=agent.check_s,
        cpu_s=2 * agent.check_s,
        memory_mb=agent.memory_mb,
        disk_mb=agent.disk_mb,
        processes=agent.processes,
    )
