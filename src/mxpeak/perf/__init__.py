"""Performance accounting: official counts of flops and bytes, and facts about the machine."""
