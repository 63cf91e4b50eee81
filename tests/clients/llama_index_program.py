"""What llama-index's documents show of ``OpenAILike``: complete, stream, chat, tools, embeddings.

Runs in the clients' environment, with the server's URL as its argument; prints what it got as JSON.
"""

from __future__ import annotations

import json
import sys

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

URL = sys.argv[1]


def look(place: str) -> str:
    """Look at a place."""
    return place


def main() -> None:
    options = {"model": "demo", "api_base": f"{URL}/v1", "api_key": "none", "context_window": 1024, "temperature": 0.0}
    chat = OpenAILike(is_chat_model=True, is_function_calling_model=True, max_tokens=16, **options)
    text = OpenAILike(is_chat_model=False, max_tokens=8, **options)
    messages = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="What is a list?")]
    calling = OpenAILike(is_chat_model=True, is_function_calling_model=True, max_tokens=120, **options)
    tool = FunctionTool.from_defaults(fn=look)
    called = calling.chat_with_tools([tool], user_msg="Look at home.", tool_required=True)
    embedding = OpenAILikeEmbedding(model_name="demo", api_base=f"{URL}/v1", api_key="none")
    found = {
        "complete": text.complete("The statement").text,
        "stream_complete": "".join(item.delta or "" for item in text.stream_complete("The statement")),
        "chat": chat.chat(messages).message.content,
        "stream_chat": "".join(item.delta or "" for item in chat.stream_chat(messages)),
        "tool_calls": [call.tool_name for call in calling.get_tool_calls_from_response(called)],
        "vectors": [len(vector) for vector in embedding.get_text_embedding_batch(["a list", "a set"])],
    }
    sys.stdout.write(json.dumps(found) + "\n")


main()
