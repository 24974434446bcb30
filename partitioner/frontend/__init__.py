"""Module to Graph: captured as a torch.fx graph, its effects analysed, compared with eager once."""
