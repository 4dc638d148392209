"""A page in Chromium that records all requests and errors."""

from __future__ import annotations

from tests.templates.conftest import open_page, window

__all__ = ["open_page", "window"]
