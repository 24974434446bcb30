"""Programs as CUDA graphs: captured once, and replayed by one launch."""
