"""The data of the report's figures, and the axis limits that fit this data."""
