"""Collects and caches metric points, moves them to disk, and reads curves at full resolution from sidecar files."""
