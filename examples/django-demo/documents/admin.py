"""The documents in the admin."""

from django.contrib import admin
from django.utils.html import format_html

from .models import Document


@admin.register(Document)
class DocumentAdmin(admin.ModelAdmin):
    """A list of titles, each with a link that downloads the file."""

    list_display = ["title", "download", "added"]
    search_fields = ["title"]

    @admin.display(description="file")
    def download(self, document):
        return format_html(
            '<a href="{}">{} bytes</a>', f"/documents/{document.pk}/", document.file.size
        )
