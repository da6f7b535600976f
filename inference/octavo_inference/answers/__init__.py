"""Tools and thinking of a request: what the chat template gets, what the answer must obey, and how it is read."""
