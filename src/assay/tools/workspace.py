"""All tools for the files of a sandbox."""

from assay.contracts.ports import Tool
from assay.tools.files import ListFiles, ReadFile
from assay.tools.run import Run, RunPython
from assay.tools.search import Search

WORKSPACE_TOOLS: tuple[Tool, ...] = (Run(), RunPython(), ReadFile(), ListFiles(), Search())
