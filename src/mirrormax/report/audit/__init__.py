"""Pages and pictures of audits."""
