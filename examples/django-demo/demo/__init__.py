"""The project: settings, URLs and the WSGI entry. The pages are in the package `documents`."""
