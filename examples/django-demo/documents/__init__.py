"""Documents: a title and an uploaded file, managed in the admin, for users who are logged in."""
