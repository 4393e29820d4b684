"""What a mode and a target do not support, as tables that plan() reads; docs/modes.md and docs/targets.md show all."""
