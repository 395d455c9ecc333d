"""Pages and pictures of audits, and the commands that make them."""
