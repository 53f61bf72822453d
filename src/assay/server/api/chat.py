"""`POST /chat`: send one message and receive the whole answer."""

from fastapi import APIRouter, Request

from assay.server.api.dependencies import Server, WriteAccess
from assay.server.api.problems import TurnFailedError, documented, request_id
from assay.server.api.schemas.sessions import ChatAnswer, ChatRequest, answer_of
from assay.server.services.chat_service import difference
from assay.server.services.shared_resources import check_usable

router = APIRouter(tags=["chat"])


@router.post("/chat", responses=documented(404, 409, 500, 502))
async def chat(
    request: Request, house: Server, caller: WriteAccess, asked: ChatRequest
) -> ChatAnswer:
    """Send a message and wait for the answer, in an existing or a new session."""
    async with house.quotas.reserving_turn(caller, asked.message) as hold:
        session_id = asked.session_id
        if session_id is None:
            model = await check_usable(asked.model, caller, house.settings)
            session_id = (await house.conversations.create(caller.user, model=model)).id
            await house.audit(caller, "session.create", session_id, request=request_id(request))
        begun = await house.conversations.begin_turn(caller, session_id, asked.message, hold)
    turn = await begun.finish()
    if turn.status == "failed":
        raise TurnFailedError(turn.error, session_id, turn.number)
    usage = difference(begun.before, begun.conversation.dialogue.history.usage)
    return answer_of(turn, session_id, usage)
