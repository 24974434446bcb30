"""What Python and its library do, where Dynamo does otherwise, or does not ask again whether it still holds."""
