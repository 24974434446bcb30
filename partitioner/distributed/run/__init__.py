"""What ranks do at each step: a batch in, loss and gradients or the output out, and nothing wrong without a word."""
