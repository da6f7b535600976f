"""The server: its lifecycle, its ports and its HTTP surface.

What the endpoints of all formats share is here (`service`, `generation`, `prompts`, `json_body`, `errors`, `sse`); what
one format has of its own is in a folder.
"""
