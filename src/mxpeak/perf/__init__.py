"""Numbers about numbers: official counts of flops and bytes, and facts about the machine."""
