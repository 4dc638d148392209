"""The nouns: study files, studies, trials, findings and changes as data."""
