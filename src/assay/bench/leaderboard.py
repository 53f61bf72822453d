"""Result of a run in the format of the public leaderboard, for comparison."""

from datetime import UTC, datetime
from typing import Any

from assay.bench.result import Status
from assay.bench.store import RUN
from assay.bench.summary import Summary
from assay.contracts.errors import MissingExtraError


def leaderboard_entry(summary: Summary, command: str) -> dict[str, Any]:
    """Return the entry. Only results of the track `blind` are comparable with the leaderboard."""
    counted = summary.counted
    usage = summary.usage
    n = len(counted) or 1
    with_malformed = sum(result.malformed > 0 for result in counted)
    tries = [one for result in counted for one in result.tries]
    begun = datetime.fromtimestamp((summary.folder / RUN).stat().st_mtime, tz=UTC)
    passed = [summary.rate_by_try(number) for number in (1, 2)]
    return {
        "dirname": summary.folder.resolve().name,
        "test_cases": len(counted),
        "model": summary.asked["model"],
        "edit_format": "whole",
        "track": summary.asked["track"],
        "commit_hash": summary.asked["source"],
        "pass_rate_1": round(100 * passed[0].value, 1),
        "pass_rate_2": round(100 * passed[1].value, 1),
        "pass_num_1": passed[0].successes,
        "pass_num_2": passed[1].successes,
        "percent_cases_well_formed": round(100 * (1 - with_malformed / n), 1),
        "error_outputs": sum(result.retries for result in counted),
        "num_malformed_responses": sum(result.malformed for result in counted),
        "num_with_malformed_responses": with_malformed,
        "user_asks": 0,
        "lazy_comments": sum(result.lazy_comments for result in counted),
        "syntax_errors": sum(one.syntax_errors for one in tries),
        "indentation_errors": sum(one.indentation_errors for one in tries),
        "exhausted_context_windows": summary.count(Status.EXHAUSTED_CONTEXT),
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "test_timeouts": sum(one.timed_out for one in tries),
        "total_tests": summary.tasks,
        "command": command,
        "date": begun.date().isoformat(),
        "versions": f"assay {summary.environment.get('assay', '')}".strip(),
        "seconds_per_case": round(summary.total(lambda result: result.model_s) / n, 1),
        "total_cost": None if usage.cost_usd is None else round(usage.cost_usd, 4),
    }


def as_yaml(entry: dict[str, Any]) -> str:
    """Return the entry in the format of the leaderboard's file: a list of one.

    Raises:
        MissingExtraError: If PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError as error:
        raise MissingExtraError("writing YAML", extra="bench") from error
    return yaml.safe_dump([entry], sort_keys=False, allow_unicode=True)
