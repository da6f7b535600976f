"""The engine's decisions: requests, blocks, scheduler and step loop. No torch, no HTTP, no clock."""
