"""Discrete-event simulator of Octavo: the operator's policy and the gateway's router on simulated pods."""
