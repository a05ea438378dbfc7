"""What do requests of other APIs look like, and which chat does each of them mean?

Anthropic's Messages and OpenAI's Responses are chats in other words: their bodies as types, and pure conversions to the
body of a chat. Both processes use them: an instance to answer, the front to know a request that no model would take.
"""
