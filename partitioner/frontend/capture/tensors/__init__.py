"""What torch does with tensors in eager, where Dynamo does otherwise or would end its graph."""
