"""What a mode and a target support, as tables that plan() reads and docs/modes.md and docs/targets.md show."""
