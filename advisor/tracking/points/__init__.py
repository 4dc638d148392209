"""Collects metric points, caches them, spills them to disk and reads them from sidecar files."""
