"""What a mode and a target support, as tables that plan() reads; docs/modes.md and docs/targets.md show them."""
