"""Steps that bring the database to the shape of models.py, made by `manage.py makemigrations`."""
