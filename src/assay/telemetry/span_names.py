"""Names of spans and attributes from OpenTelemetry's conventions for generative AI and HTTP.

The conventions still change, so all names are in this module.
"""

from typing import Final

INVOKE_AGENT: Final = "invoke_agent assay"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
AGENT: Final = "gen_ai.agent.name"
CONVERSATION: Final = "gen_ai.conversation.id"
MODEL: Final = "gen_ai.request.model"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
TOOL: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"
ERROR: Final = "error.type"

METHOD: Final = "http.request.method"
ROUTE: Final = "http.route"
STATUS: Final = "http.response.status_code"

RUN: Final = "assay.run"
TURN_STATUS: Final = "assay.turn.status"
RUN_STATUS: Final = "assay.run.status"
ATTEMPT: Final = "assay.attempt"
VERDICT: Final = "assay.verdict"
