"""The formats of a report. Each format is a pure function of the report's data."""
