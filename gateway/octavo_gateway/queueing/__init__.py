"""The hold queue: requests that wait at the gateway, their order, and the dispatch rate."""
