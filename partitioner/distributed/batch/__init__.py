"""What a step is given: a batch like the one that the stages were made for, of a model that is as it was."""
