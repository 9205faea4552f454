"""Documents: a title and an uploaded file, kept in the admin, handed out to who is logged in."""
