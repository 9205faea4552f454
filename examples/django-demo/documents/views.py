"""The pages outside the admin: a list for all visitors, the files for logged-in users."""

from django.contrib.auth.decorators import login_required
from django.http import FileResponse
from django.shortcuts import get_object_or_404, render

from .models import Document


def index(request):
    return render(request, "documents/index.html", {"documents": Document.objects.all()[:100]})


@login_required
def download(request, pk):
    document = get_object_or_404(Document, pk=pk)
    # As an attachment: an uploaded file must not run as a page of this site.
    return FileResponse(document.file.open("rb"), as_attachment=True)
