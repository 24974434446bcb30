"""What a step learns from: the user's loss of each microbatch, and whether their mean is that of the batch."""
