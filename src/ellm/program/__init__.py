"""Programs: a model recorded once as a flat list of fused ops, and what runs them."""
