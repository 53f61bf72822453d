"""What one execution of a run may use, by the settings."""

from assay.contracts.execution import Limits
from assay.settings.load import AgentSettings


def limits_of(agent: AgentSettings) -> Limits:
    """Return what one execution of a run may use."""
    return Limits(
        wall_s=agent.check_s,
        cpu_s=2 * agent.check_s,
        memory_mb=agent.memory_mb,
        disk_mb=agent.disk_mb,
        processes=agent.processes,
    )
