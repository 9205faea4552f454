"""Migrations of the database to models.py, made by `manage.py makemigrations`."""
