"""The user's nn.Module, looked at and left alone: calls, state, hooks, source lines."""
