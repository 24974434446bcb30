"""torch.fx graph to Graph: what every op touches, observed or told from a table."""
