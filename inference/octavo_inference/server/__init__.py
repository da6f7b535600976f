"""The server: its lifecycle, its ports and its HTTP API.

Modules here are shared by the endpoints of all formats (`service`, `generation`, `prompts`, `json_body`, `errors`,
`sse`). Each format has a folder for the rest.
"""
