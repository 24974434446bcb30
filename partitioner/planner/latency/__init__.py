"""What the policies for latency share: ranks, schedules by rank, bounds, homes under tight rules, search, the exact model."""
