"""The process: watches, work queue, leader election, health."""
