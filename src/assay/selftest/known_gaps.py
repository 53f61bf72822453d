"""Known gaps: requirements that a backend does not meet despite its isolation level."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_ONE_MACHINE: Final = "executions of one sandbox share its machine, and see each other in it"
_WATCHED_DISK: Final = "room is watched and not refused: a program that takes too much is stopped"
_NO_ROLLING_BACK: Final = "the service interrupts a cell, and cannot undo what it did"
_OWN_INTERPRETER: Final = "how cells end and what they show is up to the service's own interpreter"
_DENIALS: Final = "the service denies connections without telling which"
_NO_REFUSING: Final = "gVisor refuses no process: one too many is noticed, and the program ended"
_ONE_PROC: Final = "gVisor has one /proc for all of a container: others can be seen, not touched"
_SEEN_BY_LOOKING: Final = "gVisor tells no peak: a program that ends before a look has used nothing"
_TWO_ROOMS: Final = "workspace and temporary files are file systems of their own, watched together"
_PER_USER: Final = "processes are counted per user: one too many may be ended instead of refused"

KNOWN_GAPS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "e2b": MappingProxyType(
            {
                "executions_that_overlap_do_not_see_each_other": _ONE_MACHINE,
                "a_program_that_handles_a_full_disk_succeeds": _WATCHED_DISK,
                "temporary_files_count_against_the_disk_limit": _WATCHED_DISK,
                "a_full_workspace_refuses_directories_and_can_be_emptied": _WATCHED_DISK,
                "a_program_that_handles_a_limit_succeeds": _PER_USER,
                "only_a_cell_that_times_out_is_lost": _NO_ROLLING_BACK,
                "only_a_cell_that_crashes_is_lost": _NO_ROLLING_BACK,
                "a_cell_that_calls_os_exit_is_rolled_back": _NO_ROLLING_BACK,
                "only_a_cell_that_exceeds_cpu_time_is_lost": _NO_ROLLING_BACK,
                "only_a_cell_that_exceeds_memory_is_lost": _NO_ROLLING_BACK,
                "memory_counts_for_all_cells_together": _NO_ROLLING_BACK,
                "only_the_interrupted_cell_is_lost": _NO_ROLLING_BACK,
                "a_cancelled_task_ends_its_cell": _NO_ROLLING_BACK,
                "files_of_a_lost_cell_remain": _NO_ROLLING_BACK,
                "an_interpreter_that_kills_itself_is_reported_as_lost": _OWN_INTERPRETER,
                "a_call_to_exit_ends_the_cell_and_not_the_interpreter": _OWN_INTERPRETER,
                "processes_of_a_cell_end_with_it": _OWN_INTERPRETER,
                "threads_end_with_their_cell": _OWN_INTERPRETER,
                **dict.fromkeys(
                    (
                        "the_value_of_the_last_expression_is_shown",
                        "nothing_is_shown_for_none_statements_and_semicolons",
                        "displayed_values_arrive_in_order_while_a_cell_runs",
                        "objects_are_shown_in_all_their_mime_types",
                        "a_failing_repr_method_does_not_fail_the_cell",
                        "data_is_shown_as_json_too",
                        "long_text_is_truncated_and_large_representations_are_dropped",
                        "a_cell_that_displays_too_much_returns_part_of_it",
                        "a_traceback_leaves_out_frames_of_libraries",
                        "a_traceback_shows_lines_of_this_and_earlier_cells",
                        "exceptions_without_a_working_repr_are_shown",
                        "a_cell_may_await",
                        "figures_are_shown_without_being_saved",
                    ),
                    _OWN_INTERPRETER,
                ),
                "a_host_outside_the_allowlist_is_blocked_and_reported": _DENIALS,
                "an_address_outside_the_allowlist_is_blocked_and_reported": _DENIALS,
                "a_blocked_connection_is_reported_once": _DENIALS,
            }
        ),
        "docker+runsc": MappingProxyType(
            {
                "executions_that_overlap_do_not_see_each_other": _ONE_PROC,
                "a_program_that_handles_a_limit_succeeds": _NO_REFUSING,
                "peak_memory_follows_the_use": _SEEN_BY_LOOKING,
                "a_program_that_handles_a_full_disk_succeeds": _TWO_ROOMS,
                "temporary_files_count_against_the_disk_limit": _TWO_ROOMS,
                "a_full_workspace_refuses_directories_and_can_be_emptied": _TWO_ROOMS,
            }
        ),
    }
)
"""By backend and by the name of the requirement. The backend's documentation lists all of them."""


def known_gap(backend: str, requirement: str) -> str:
    """Return why a backend does not meet this requirement; empty if it must."""
    return KNOWN_GAPS.get(backend, {}).get(requirement, "")
