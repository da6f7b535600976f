"""The engine core: requests, KV blocks, scheduler and step loop. No torch, no HTTP, no clock of its own."""
