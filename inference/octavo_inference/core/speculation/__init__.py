"""Speculative decoding: guesses of the next tokens, which one step verifies together.

A proposer guesses the tokens that follow a sequence. The step computes them behind the sequence's last token and
samples at each position, with the seed and the position that an ordinary step would use there. The guesses are accepted
as far as the samples agree; the first other sample is the token after them. So the answer is the same token by token as
without speculation, greedy or sampled, whatever a proposer guesses. For a guess of one token per position, this accepts
with the probability of rejection sampling (Leviathan et al. 2023): the model's own probability of the token.
"""
