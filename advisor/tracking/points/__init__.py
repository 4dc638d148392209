"""Collects metric points, caches them, moves them to disk and reads them from sidecar files (curves at full resolution)."""
