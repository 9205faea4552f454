"""The project: settings, addresses and the WSGI entry. The pages are in the package `documents`."""
