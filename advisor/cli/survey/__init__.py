"""All experiments of a store, each analysed by itself, with a page that lists them.

choice -> analyses -> workers (processes of this machine, a Ray cluster)      luggage: what other machines need of this one
"""

from advisor.cli.survey.analyses import INDEX, analyze_all
from advisor.cli.survey.choice import Chosen, choose

__all__ = ["INDEX", "Chosen", "analyze_all", "choose"]
