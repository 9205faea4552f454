"""The public URLs."""

from django.urls import path

from . import views

urlpatterns = [
    path("", views.index),
    path("documents/<int:pk>/", views.download),
]
