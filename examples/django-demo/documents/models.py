"""The database model."""

from django.db import models


class Document(models.Model):
    """An uploaded file with a title."""

    title = models.CharField(max_length=200)
    file = models.FileField(upload_to="documents/%Y/")
    added = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-added"]

    def __str__(self):
        return self.title
