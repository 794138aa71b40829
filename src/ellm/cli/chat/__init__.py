"""`ellm chat`: what a conversation is, how it is kept, and how it is talked with."""
