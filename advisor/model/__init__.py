"""Defines the data model: study files, studies, trials, findings and changes."""
