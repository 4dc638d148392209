"""A page in Chromium that notes whatever is asked for, and whatever goes wrong."""

from __future__ import annotations

from tests.templates.conftest import open_page

__all__ = ["open_page"]
