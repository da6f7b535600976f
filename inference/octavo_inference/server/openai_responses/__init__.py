"""OpenAI's Responses API: POST /v1/responses and the endpoints of stored responses.

`request_body` and `resource` are the messages, `conversation` turns items into a prompt, `answer` collects a generation
into a response, `events` writes its stream. `store` keeps responses, `background` runs those without a connection.
"""
