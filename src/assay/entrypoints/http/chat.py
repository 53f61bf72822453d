"""`POST /chat`: one message in, one whole answer out."""

from fastapi import APIRouter, Request

from assay.entrypoints.http.callers import House, Writer
from assay.entrypoints.http.problems import documented, request_id
from assay.entrypoints.http.session_shapes import ChatAnswer, ChatRequest, answer_of
from assay.hosting.conversations import difference
from assay.hosting.lending import check_model

router = APIRouter(tags=["chat"])


@router.post("/chat", responses=documented(404, 409))
async def chat(request: Request, house: House, caller: Writer, asked: ChatRequest) -> ChatAnswer:
    """Say something and wait for the answer, in a session that goes on or in a new one."""
    session_id = asked.session_id
    if session_id is None:
        model = check_model(asked.model, house.settings)
        session_id = (await house.conversations.create(caller.user, model=model)).id
        await house.audit(caller, "session.create", session_id, request=request_id(request))
    begun = await house.begin_turn(caller, session_id, asked.message)
    turn = await begun.finish()
    usage = difference(begun.before, begun.conversation.dialogue.history.usage)
    return answer_of(turn, session_id, usage)
